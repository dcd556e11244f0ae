"""What trained clients have in common: measured on finished runs, never trained here."""
