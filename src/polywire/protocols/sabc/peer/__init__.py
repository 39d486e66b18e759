"""sABC between two programs: one side of a session, on the codec and its tables.

``protocols/sabc/client.py`` opens sessions, ``protocols/sabc/server.py`` accepts them.
"""
