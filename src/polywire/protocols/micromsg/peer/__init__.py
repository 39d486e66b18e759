"""MicroMsg2 between two programs: one side of a connection, on the codec and its tables.

``protocols/micromsg/client.py`` opens connections, ``protocols/micromsg/server.py`` accepts them.
"""
