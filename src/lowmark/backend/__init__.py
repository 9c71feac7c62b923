"""What the client and compaction ask of a database, and the two that answer it.

port            what is asked; values, codec: the data that crosses it
embedded        a node on a thread of this process, and the ways to ask it
attached        the same over a node that this process runs by itself
remote          a server in another process, over Arrow Flight
protocol        what is said there; connection, remote_append, view_parts: how
ledgers         ledgers that are open for reading, and who keeps their files
errors          what callers of a database are refused with
"""
