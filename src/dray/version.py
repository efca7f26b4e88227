"""The version of dray, in one place."""

VERSION = "0.1.0"
