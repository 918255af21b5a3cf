// What a program touched in its last run, in order: the next run will touch the same or its neighbours.
//
// Attention goes through many small pieces of memory, each only as long as the processor needs to recognize a stream, and
// none is in a cache any more after the weights of a whole model. So a piece, and what is known of it, is asked for while
// others before it are worked on. A wrong guess costs a few fetches and nothing else.
#pragma once

#include <cstddef>
#include <vector>

namespace npu {

template <class Piece>
class Replay {
 public:
  void restart() { place_ = 0; }

  // Begins the next piece of the run: the last run's notes of it, to be replaced by this run's.
  Piece& next() {
    if (place_ == pieces_.size()) pieces_.emplace_back();
    return pieces_[place_++];
  }

  // The last run's notes of the piece that is kAhead pieces behind the one that was begun last, or null.
  const Piece* later() const { return place_ + kAhead <= pieces_.size() ? &pieces_[place_ + kAhead - 1] : nullptr; }

  bool full() const { return place_ == kMaxPieces; }

 private:
  // Far enough for the memory's latency, near enough for the second-level cache.
  static constexpr size_t kAhead = 8;
  static constexpr size_t kMaxPieces = size_t{1} << 18;
  std::vector<Piece> pieces_;
  size_t place_ = 0;
};

}  // namespace npu
