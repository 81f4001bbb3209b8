"""Policies in the format of OpenVLA (Kim 2024) and OpenVLA-OFT (Kim 2025), built from transformers' Llama and a ViT of our own."""
