"""The parties as processes of different owners: who they are, and how they reach each other."""
