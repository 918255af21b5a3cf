"""What the query of a vision route may say: read by the routes, told by /openapi.json."""

from npuserve.server.fields import Integer, Kind, Real

TOP_N = Integer(1, 1000)
SHARE = Real(0, 1)
QUERIES: dict[str, dict[str, Kind]] = {
    "/v1/vision/classify": {"top_n": TOP_N},
    "/v1/vision/detect": {"conf": SHARE, "iou": SHARE},
}
