"""Models for use without PyTorch: ONNX and OpenVINO, each with a report of what it lost."""
