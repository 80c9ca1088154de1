"""What is imported of Gaudi's software, on a machine without one."""
