"""How tests prove the numbered rules of docs/protocols."""
