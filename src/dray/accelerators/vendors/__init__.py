"""The families of accelerators, one file for each vendor or kind of device."""
