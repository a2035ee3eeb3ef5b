"""The router: places sessions on replicas and relays their frames."""
