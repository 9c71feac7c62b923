"""Figures as ratios, both sides measured in the same run on the same machine."""
