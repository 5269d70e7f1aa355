"""The page: HTML, scripts and styles, sign-in."""
