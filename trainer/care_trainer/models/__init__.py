"""The encoders: built from base models, reloaded, made trainable; and the teacher's stored vectors."""
