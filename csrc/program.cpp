#include "program.h"

#include <algorithm>
#include <cstring>

namespace npu {
namespace {

constexpr size_t kInstructionBytes = kWordsPerInstruction * 4;

// Only tells candidates apart: equal hashes are followed by a comparison of the bytes.
uint64_t hash_bytes(const uint8_t* bytes, size_t size) {
  uint64_t lanes[4] = {size, 1, 2, 3};
  for (size_t i = 0; i < size; i += kInstructionBytes) {
    uint64_t words[4];
    std::memcpy(words, bytes + i, sizeof words);
    for (int lane = 0; lane < 4; ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * 0x9e3779b97f4a7c15u;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  uint64_t result = 0;
  for (const uint64_t lane : lanes) result = (result ^ lane) * 0xbf58476d1ce4e5b9u + (result >> 31);
  return result;
}

std::shared_ptr<Program> decode_program(uint64_t hash, const uint8_t* bytes, size_t num_instructions) {
  auto program = std::make_shared<Program>();
  program->hash = hash;
  program->words.resize(num_instructions * kWordsPerInstruction);
  if (num_instructions > 0) std::memcpy(program->words.data(), bytes, num_instructions * kInstructionBytes);
  program->instructions.reserve(num_instructions);
  for (size_t i = 0; i < num_instructions; ++i) {
    program->instructions.push_back(decode(&program->words[i * kWordsPerInstruction]));
  }
  return program;
}

}  // namespace

std::shared_ptr<Program> ProgramCache::get(const uint8_t* words, size_t num_instructions) {
  const size_t size = num_instructions * kInstructionBytes;
  const uint64_t hash = hash_bytes(words, size);
  const auto same = [&](const std::shared_ptr<Program>& program) {
    return program->hash == hash && program->words.size() * 4 == size &&
           (size == 0 || std::memcmp(program->words.data(), words, size) == 0);
  };
  auto found = std::find_if(recent_.begin(), recent_.end(), same);
  if (found == recent_.end()) {
    if (recent_.size() == kCapacity) recent_.pop_back();
    recent_.push_back(decode_program(hash, words, num_instructions));
    found = recent_.end() - 1;
  }
  std::rotate(recent_.begin(), found, found + 1);
  return recent_.front();
}

}  // namespace npu
