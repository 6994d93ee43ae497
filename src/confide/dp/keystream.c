/* AES-256 in counter mode by the processor's own instructions: the bytes that any other implementation gives, in all threads. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { ROUNDS = 14, LANES = 8, SPAN = 1024 };  /* blocks under way at once; blocks that a thread takes at a time */
#if defined(__clang__) || __GNUC__ < 11
#define TWO_BLOCKS 0  /* not every compiler can ask the processor for it */
#else
#define TWO_BLOCKS __builtin_cpu_supports("vaes")
#endif
#define AES __attribute__((target("aes,sse4.1")))
#define INLINE static inline __attribute__((always_inline, target("aes,sse4.1")))

INLINE __m128i folded(__m128i key) {  /* each word added to all that follow */
    key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
    return _mm_xor_si128(key, _mm_slli_si128(key, 8));
}

INLINE __m128i even(__m128i before, __m128i last, const int constant) {
    __m128i word;
    switch (constant) {  /* the instruction wants it written out */
    case 1: word = _mm_aeskeygenassist_si128(last, 1); break;
    case 2: word = _mm_aeskeygenassist_si128(last, 2); break;
    case 4: word = _mm_aeskeygenassist_si128(last, 4); break;
    case 8: word = _mm_aeskeygenassist_si128(last, 8); break;
    case 16: word = _mm_aeskeygenassist_si128(last, 16); break;
    case 32: word = _mm_aeskeygenassist_si128(last, 32); break;
    default: word = _mm_aeskeygenassist_si128(last, 64);
    }
    return _mm_xor_si128(folded(before), _mm_shuffle_epi32(word, 0xff));
}

/* The fifteen round keys of a key of 32 bytes (FIPS 197). */
AES void confide_expand(const uint8_t *key, uint8_t *keys) {
    __m128i k[ROUNDS + 1];
    k[0] = _mm_loadu_si128((const __m128i *)key);
    k[1] = _mm_loadu_si128((const __m128i *)(key + 16));
    for (int round = 2; round <= ROUNDS; round++)
        if (round % 2 == 0) k[round] = even(k[round - 2], k[round - 1], 1 << (round / 2 - 1));
        else k[round] = _mm_xor_si128(folded(k[round - 2]), _mm_shuffle_epi32(_mm_aeskeygenassist_si128(k[round - 1], 0), 0xaa));
    memcpy(keys, k, sizeof k);
}

/* Blocks from the counter high·2^64 + low on. */
AES static void narrow(const uint8_t *keys, uint64_t high, uint64_t low, long blocks, uint8_t *out) {
    __m128i k[ROUNDS + 1];
    memcpy(k, keys, sizeof k);
    for (long at = 0; at < blocks; at += LANES) {
        __m128i x[LANES];
        for (int i = 0; i < LANES; i++) {  /* the counter: 128 bits, the highest byte first */
            const uint64_t now = low + at + i, carried = high + (now < low);
            x[i] = _mm_xor_si128(_mm_set_epi64x(__builtin_bswap64(now), __builtin_bswap64(carried)), k[0]);
        }
        for (int round = 1; round < ROUNDS; round++)
            for (int i = 0; i < LANES; i++) x[i] = _mm_aesenc_si128(x[i], k[round]);
        for (int i = 0; i < LANES && at + i < blocks; i++)
            _mm_storeu_si128((__m128i *)out + at + i, _mm_aesenclast_si128(x[i], k[ROUNDS]));
    }
}

/* The same, two blocks to an instruction, for whole groups of blocks over which the lower half of the counter does not wrap around. */
__attribute__((target("vaes,avx2"))) static void wide(const uint8_t *keys, uint64_t high, uint64_t low, long blocks, uint8_t *out) {
    const __m256i reversed = _mm256_set_epi8(8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i two = _mm256_set_epi64x(2, 0, 2, 0);
    __m256i k[ROUNDS + 1], counter = _mm256_set_epi64x(low + 1, high, low, high);
    for (int round = 0; round <= ROUNDS; round++) k[round] = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)keys + round));
    for (long at = 0; at < blocks; at += 2 * LANES) {
        __m256i x[LANES];
        for (int i = 0; i < LANES; i++) {
            x[i] = _mm256_xor_si256(_mm256_shuffle_epi8(counter, reversed), k[0]);
            counter = _mm256_add_epi64(counter, two);
        }
        for (int round = 1; round < ROUNDS; round++)
            for (int i = 0; i < LANES; i++) x[i] = _mm256_aesenc_epi128(x[i], k[round]);
        for (int i = 0; i < LANES; i++) _mm256_storeu_si256((__m256i *)(out + 16 * at) + i, _mm256_aesenclast_epi128(x[i], k[ROUNDS]));
    }
}

/* Blocks of the keystream, from the one that is `from` behind counter high·2^64 + low on, in this thread. */
void confide_blocks(const uint8_t *keys, uint64_t high, uint64_t low, long from, long blocks, uint8_t *out) {
    const uint64_t now = low + from, carried = high + (now < low);
    long done = 0;
    if (TWO_BLOCKS && now + blocks > now) {
        done = blocks / (2 * LANES) * (2 * LANES);
        wide(keys, carried, now, done, out);
    }
    narrow(keys, carried + (now + done < now), now + done, blocks - done, out + 16 * done);
}

/* The same in all threads. */
void confide_stream(const uint8_t *keys, uint64_t high, uint64_t low, long from, long blocks, uint8_t *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && blocks > SPAN)
    for (long at = 0; at < blocks; at += SPAN)
        confide_blocks(keys, high, low, from + at, blocks - at < SPAN ? blocks - at : SPAN, out + 16 * at);
}
#endif
