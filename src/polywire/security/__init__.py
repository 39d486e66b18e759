"""Who a client is: users and passwords, tokens, certificates, and what failed logins cost. It opens no sockets."""
