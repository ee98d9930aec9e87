"""Focal contrastive learning: MoCo v2 with a focal loss."""
