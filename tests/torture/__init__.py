"""Three nodes, clients that write down all they do, and a nemesis: nothing acknowledged is lost.

node        a node: `lowmark serve` as it is, with a wall clock and ways to peers that are moved
cutting     the ways between nodes, which are cut in both directions or in one
cluster     the three processes: killed, suspended, cut off, their disk filled, their clock put
client      a process with clients of many kinds; each writes its history
history     what was done, as JSON lines (docs/formats/history.md)
operating   what an operator does: alter, cut, compact, move, reset
nemesis     what is done to the nodes, and when
check       holds histories against what is there at the end, row by row
run         all of it: `make torture MINUTES=n`
"""
