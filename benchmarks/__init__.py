"""What offsetstore costs, measured: see docs/performance.md."""
