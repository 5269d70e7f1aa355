"""Routes of the REST interface, by resource."""
