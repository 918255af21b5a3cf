// The machine's exp2, recip, rsqrt and log2, step by step as its arithmetic defines them. Results are final.
#pragma once

#include "lanes.h"

namespace npu {
namespace {

NPU_INLINE F exp2(F x) {
  x = flush(x);
  // Adding 1.5 * 2^23 rounds to an integer in any rounding-to-nearest fp32 unit; |x| < 2^22 is enough, as what lies
  // outside [-126, 128) is replaced below.
  const F magic = splat(12582912.0f);
  const M in_range = less(x, splat(128.0f)) & not_less(x, splat(-126.0f));
  const F clamped = select(in_range, x, F{});
  const F nearest = (clamped + magic) - magic;
  const F floor = select(less(clamped, nearest), nearest - 1.0f, nearest);
  const I whole = bits(floor + magic) - bits(magic);
  const F f = clamped - floor;
  F p = splat_bits(0x37b3c7d6);
  const uint32_t coefficients[] = {0x3916c07c, 0x3aafe2f6, 0x3c1d8534, 0x3d63593e, 0x3e75fde9, 0x3f317218, 0x3f800000};
  for (const uint32_t c : coefficients) p = add(mul(p, f), splat_bits(c));
  const F inside = value(bits(p) + (whole << 23));
  const F outside = select(less(x, splat(-126.0f)), F{}, value(splat(kExponent)));
  return select(in_range, inside, outside);
}

NPU_INLINE F recip(F x) {
  const I b = bits(x);
  const I exponent = b & kExponent;
  const F a = value((b & kFraction) | 0x3f800000);
  F y = value(0x7ef311c3 - bits(a));
  for (int step = 0; step < 2; ++step) y = y * (2.0f - a * y);
  const F e = 1.0f - a * y;
  y = y * e + y;
  const I magnitude = bits(y) + (splat(127 << 23) - exponent);
  const I zero = splat(0);
  const I sign = b & kSign;
  const I large = select(less(exponent, splat(253 << 23)), magnitude | sign, sign);
  return value(select(equal(exponent, zero), zero, large));
}

NPU_INLINE F rsqrt(F x) {
  x = flush(x);
  const I b = bits(x);
  const I exponent = b >> 23;  // of positive x
  const M small = less(exponent, splat(3));
  const M large = less(splat(249), exponent);
  const F scaled = select(small, x * 16.0f, select(large, x * 0.0625f, x));
  F y = value(0x5f3759df - (bits(scaled) >> 1));
  const F h = 0.5f * scaled;
  for (int step = 0; step < 2; ++step) y = y * (1.5f - h * (y * y));
  const F e = 0.5f - h * (y * y);
  y = y * e + y;
  const I shifted = bits(y) + select(small, splat(2 << 23), select(large, splat(-(2 << 23)), splat(0)));
  const I positive = select(less(splat(kExponent), b), splat(kCanonicalNan), shifted);
  return value(select(less(splat(0), b) & ~equal(b, splat(kExponent)), positive, splat(0)));
}

NPU_INLINE F log2(F x) {
  const I b = bits(flush(x));
  const I fraction = b & kFraction;
  const M above = less(splat(0x3504f2), fraction);
  const I one = splat(1);
  const I zero = splat(0);
  const I e = (b >> 23) - 127 + select(above, one, zero);
  const F m = value(select(above, splat(126 << 23), splat(127 << 23)) | fraction);
  const F t = m - 1.0f;
  F q = splat_bits(0x3e00db73);
  const uint32_t coefficients[] = {0xbe543e8e, 0x3e5ce48e, 0xbe74adf2, 0x3e9369c2,
                                   0xbeb8ae27, 0x3ef639eb, 0xbf38aa38, 0x3fb8aa3b};
  for (const uint32_t c : coefficients) q = add(mul(q, t), splat_bits(c));
  const I normal = bits(finish(add(mul(q, t), to_float(e))));
  const I not_finite = select(equal(b, splat(kExponent)), splat(kExponent), splat(kCanonicalNan));
  const I positive = select(less(b, splat(kExponent)), normal, not_finite);
  const I not_negative = select(equal(b & kMagnitude, zero), splat(static_cast<int32_t>(0xff800000)), positive);
  return value(select(less(b, zero) & ~equal(b, splat(kSign)), splat(kCanonicalNan), not_negative));
}

}  // namespace
}  // namespace npu
