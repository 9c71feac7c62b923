"""What several suites of this room need."""

from __future__ import annotations

import pytest

from runtime.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """What signs the certificates of a cluster."""
    return Authority(tmp_path_factory.mktemp("authority"))
