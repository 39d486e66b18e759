"""One module per protocol, with ``run(data)``, which raises where the contract breaks, and ``seeds()``."""
