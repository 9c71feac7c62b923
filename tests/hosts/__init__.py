"""Hosts on one machine: each with its own network, name and files, and a network between them.

hosts       a bridge and the hosts at it; processes are started in a host
keeper      the process that has their namespaces, and ends all that runs in them
faults      what is between hosts: cuts in one direction or both, loss, rates, a cable pulled out
delay       what leaves a host arrives later: by `netem`, or by a relay between two TAP devices

Nothing of the machine is changed: not its interfaces, routes or firewall, and no name is given in
its `/run/netns`. All of it is in namespaces that only open files keep, so nothing is left that a
later run would have to find and sweep: they go with the keeper, and the keeper ends what runs in
them when the process that started it ends, however that ends. Two runs beside each other have the
same addresses, in different networks.
"""
