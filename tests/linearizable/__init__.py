"""A judge that is not ours: histories of `make torture` checked by Porcupine, a Go program.

main.go     the command: which models there are, and what its exit codes mean
history     reads docs/formats/history.md
registers   keys of the table and of the metastore
lists       partitions
cursors     where named readers stand
asof        reads as of a time, without Porcupine
checking    builds and calls it from Python
run         `make linearizable`: checks a history, or makes some under all troubles and checks each
"""
