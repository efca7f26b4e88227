"""One file a vendor or a kind of device."""
