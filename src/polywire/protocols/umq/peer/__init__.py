"""UMQ between two programs: one side of a connection, on the codec and its tables.

``protocols/umq/client.py`` opens connections, ``protocols/umq/server.py`` accepts them; the peers they give are equal.
"""
