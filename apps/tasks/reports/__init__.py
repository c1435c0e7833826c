"""How representative a suite is: computed once per content and evidence, stored, shown, and served by the API."""
