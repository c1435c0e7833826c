"""REST API of promotions."""
