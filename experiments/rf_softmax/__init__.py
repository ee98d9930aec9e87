"""RF-softmax: sampled softmax with kernel-based samplers."""
