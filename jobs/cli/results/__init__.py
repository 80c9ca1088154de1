"""What runs came to: commands that compare and show results."""
