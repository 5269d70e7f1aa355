"""The page, as an operator has it in a browser. A package, so that its files share a service."""
