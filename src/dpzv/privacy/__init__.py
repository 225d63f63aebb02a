"""Plans, accounts and ledgers of everything that is released. Nothing here imports torch."""
