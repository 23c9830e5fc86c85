"""What every store must do, whatever its database."""
