"""What `dsindex doctor` looks at: software, machine, folders, tokenizer, Ray and compiled kernels."""
