"""One file per migration, never changed after its release."""
