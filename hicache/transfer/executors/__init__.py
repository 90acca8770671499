"""Who moves the bytes. All of them keep one protocol, so that the cache cannot tell them apart."""
