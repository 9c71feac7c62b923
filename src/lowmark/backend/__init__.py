"""What the client and compaction ask of a database, and the node that answers inside this process.

embedded    a node on a thread of this process, and the ways to ask it
ledgers     ledgers that are open for reading, and who keeps their files
errors      what callers of a database are refused with
"""
