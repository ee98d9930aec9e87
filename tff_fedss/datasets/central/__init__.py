"""Data without clients, for the papers other than FedSS.

`labelled_images` and `augmentation` (LEAP, MoCo), `identities` and `lfw_pairs` (Partial
FC), `extreme` and `penn_treebank` (RF-softmax), `public_images` for pretraining.
"""
