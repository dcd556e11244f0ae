"""A trained client as plain torch, ONNX or NIR."""
