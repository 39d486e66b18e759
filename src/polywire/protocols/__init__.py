"""The protocols polywire speaks: one folder each, with the same file names inside.

Adding a protocol is one new folder and one name in ``PROTOCOLS``; CONTRIBUTING.md walks through it.
"""

PROTOCOLS = ("umq", "micromsg", "fmqp", "mqtt", "mqttrpc", "sabc")
