"""The detectors that settings may name."""

# What [vision] detector may say, and which of the decoders that is; auto looks at the outputs.
DETECTORS = {
    "auto": "auto",
    "yolov5": "v5",
    "yolov7": "v7",
    "yolov8": "v8",
    "yolov11": "v8",
    "yolo11": "v8",
    "yolox": "yolox",
    "raw": "raw",
}
