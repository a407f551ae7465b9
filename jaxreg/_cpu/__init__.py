"""What makes programs fast on a CPU: convolutions, oneDNN and the memory of the host."""
