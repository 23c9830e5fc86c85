"""What every store must do on every database."""
