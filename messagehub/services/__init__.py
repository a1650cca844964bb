"""Request and reply between processes: workers serve addresses, clients call them."""
