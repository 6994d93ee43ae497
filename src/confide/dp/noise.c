/* Coins, Box–Muller and the lattice of noise.py in one pass: a key and a sum in, the noised sum out.
 *
 * The same formulas as the torch code in noise.py, to a few units in the last place, written so that a compiler turns each
 * loop into vector instructions.
 */
#if defined(__x86_64__) && defined(__GNUC__)
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_CPU
#endif

void confide_blocks(const uint8_t *keys, uint64_t high, uint64_t low, long from, long blocks, uint8_t *out);

enum { CHUNK = 512 };  /* pairs whose scratch stays in the first-level cache */

static inline double from_bits(uint64_t bits) { double value; memcpy(&value, &bits, 8); return value; }
static inline uint64_t to_bits(double value) { uint64_t bits; memcpy(&bits, &value, 8); return bits; }

/* A signed 64-bit whole number as a double, rounded once: (double)x, in steps that every vector unit has. */
static inline double whole(int64_t x) {
    const uint64_t bits = (uint64_t)x;
    const double high = from_bits((bits >> 32) ^ 0x4530000080000000ULL);  /* 2^84 + 2^63 + 2^32·floor(x/2^32) */
    const double low = from_bits((bits & 0xffffffffULL) | 0x4330000000000000ULL);  /* 2^52 + the rest */
    return (high - (0x1p84 + 0x1p63 + 0x1p52)) + low;
}

/* The natural logarithm of a normal number u > 0: u = 2^e·m with m in [√½, √2), log m = 2·atanh((m-1)/(m+1)). */
static inline double logarithm(double u) {
    const uint64_t root_half = 0x3fe6a09e667f3bcdULL, one = 0x3ff0000000000000ULL;
    uint64_t shifted = to_bits(u) + (one - root_half);
    double e = from_bits((shifted >> 52) | 0x4330000000000000ULL) - (0x1p52 + 1023);
    double f = from_bits((shifted & 0x000fffffffffffffULL) + root_half) - 1;
    double s = f / (2 + f), w = s * s;
    double series = w * (2. / 3 + w * (2. / 5 + w * (2. / 7 + w * (2. / 9 + w * (2. / 11 + w * (2. / 13 + w * (2. / 15
                  + w * (2. / 17 + w * (2. / 19 + w * (2. / 21))))))))));
    return e * 6.93147180369123816490e-01 + (2 * s + (s * series + e * 1.90821492927058770002e-10));
}

/* Radii from coins: sqrt(-2 log u)·scale for u = |coin·2^-63 + 2^-64|. Returns how many u lie outside (low, high). */
EACH_CPU
static long radii(const int64_t *restrict coins, long n, double scale, double low, double high, double *restrict u,
                  double *restrict radius) {
    const double factor = -2 * scale * scale;
    long rare = 0;
    for (long i = 0; i < n; i++) u[i] = fabs(whole(coins[i]) * 0x1p-63 + 0x1p-64);
    for (long i = 0; i < n; i++) rare += (u[i] < low) | (u[i] > high);
    for (long i = 0; i < n; i++) radius[i] = sqrt(logarithm(u[i]) * factor);
    return rare;
}

/* cos and sin of coin·π·2^-63, times the radius. The quarter turn is taken off exactly; what is left has a short series. */
EACH_CPU
static void turn(const int64_t *restrict coins, long n, const double *restrict radius, double *restrict x,
                 double *restrict y) {
    const double pi = 3.14159265358979323846, magic = 0x1.8p52;
    for (long i = 0; i < n; i++) {
        double t = whole(coins[i]) * 0x1p-63 + 0x1p-64;
        double shifted = 2 * t + magic;
        uint64_t quarter = to_bits(shifted);
        double a = (t - 0.5 * (shifted - magic)) * pi, w = a * a;
        double sine = a + a * w * (-1. / 6 + w * (1. / 120 + w * (-1. / 5040 + w * (1. / 362880 + w * (-1. / 39916800
                    + w * (1. / 6227020800 + w * (-1. / 1307674368000)))))));
        double cosine = 1 + w * (-1. / 2 + w * (1. / 24 + w * (-1. / 720 + w * (1. / 40320 + w * (-1. / 3628800
                      + w * (1. / 479001600 + w * (-1. / 87178291200 + w * (1. / 20922789888000))))))));
        uint64_t swap = 0 - (quarter & 1), c = to_bits(cosine), s = to_bits(sine), both = (c ^ s) & swap;
        x[i] = radius[i] * from_bits((c ^ both) ^ (((quarter + 1) & 2) << 62));
        y[i] = radius[i] * from_bits((s ^ both) ^ ((quarter & 2) << 62));
    }
}

/* Each sum x becomes step·(round(x/step) + round(z)), z its draw in units of the lattice; `step` is a power of two. */
EACH_CPU
static void lattice32(float *restrict sums, const double *restrict drawn, long n, double step) {
    const double cells = 1 / step;
    for (long i = 0; i < n; i++) sums[i] = (float)((rint(drawn[i]) + rint(sums[i] * cells)) * step);
}

EACH_CPU
static void lattice64(double *restrict sums, const double *restrict drawn, long n, double step) {
    const double cells = 1 / step;
    for (long i = 0; i < n; i++) sums[i] = (rint(drawn[i]) + rint(sums[i] * cells)) * step;
}

typedef struct { const uint8_t *keys; uint64_t high, low; long from; } Blocks;
typedef uint64_t (*Fresh)(const void *source, long i);

static uint64_t of_block(const void *source, long i) {
    const Blocks *blocks = source;
    uint64_t words[2];
    confide_blocks(blocks->keys, blocks->high, blocks->low, blocks->from + i, 1, (uint8_t *)words);
    return words[0];
}

static uint64_t of_list(const void *source, long i) { return ((const uint64_t *)source)[i]; }

/* Draws of N(0, scale²) from at most CHUNK pairs of coins, n of radii and then n of angles. A radius outside (low, high) gets a
 * fresh word of its pair. Draw i and draw n + i are a pair.
 */
static void draw(const int64_t *coins, long n, Fresh fresh, const void *source, double scale, double low, double high, double *drawn) {
    double u[CHUNK], radius[CHUNK];
    if (radii(coins, n, scale, low, high, u, radius))
        for (long i = 0; i < n; i++) {
            if (low <= u[i] && u[i] <= high) continue;
            int64_t place = coins[i] < 0 ? ~coins[i] : coins[i];
            const int upper = place >= INT64_C(1) << 62;
            if (upper) place = INT64_MAX - place;
            const double v = ((double)place + ((double)fresh(source, i) + 0.5) * 0x1p-64) * 0x1p-63;
            radius[i] = sqrt(-2 * (upper ? log1p(-v) : log(v))) * scale;
        }
    turn(coins + n, n, radius, drawn, drawn + n);
}

/* For tests: the same with coins and fresh words that are given. */
void confide_draw(const int64_t *coins, long n, const uint64_t *fresh, double scale, double low, double high, double *drawn) {
    draw(coins, n, of_list, fresh, scale, low, high, drawn);
}

/* Noise a sum of `count` numbers, in all threads; `scale` is the standard deviation in units of the lattice `step`.
 *
 * A pair of numbers has one block of the keystream; the blocks of up to CHUNK pairs hold the words of their radii and then those of
 * their angles. The fresh word of a pair is the first of its block in a second row of blocks behind the first. So as many
 * blocks are used up as there are numbers, an odd one rounded up, and none for two things.
 */
void confide_noise(void *sums, int wide, long count, const uint8_t *keys, uint64_t high_counter, uint64_t low_counter, double scale,
                   double step, double low, double high, int threads) {
    const long pairs = (count + 1) / 2;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1 && pairs > 4 * CHUNK)
    for (long at = 0; at < pairs; at += CHUNK) {
        int64_t coins[2 * CHUNK];
        double drawn[2 * CHUNK];
        const long n = pairs - at < CHUNK ? pairs - at : CHUNK, numbers = count - 2 * at < 2 * n ? count - 2 * at : 2 * n;
        const Blocks second = {keys, high_counter, low_counter, pairs + at};
        const char *place = (const char *)sums + 2 * at * (wide ? 8 : 4);
        for (long byte = 0; byte < numbers * (wide ? 8 : 4); byte += 64) __builtin_prefetch(place + byte, 1);  /* while the draws are made */
        confide_blocks(keys, high_counter, low_counter, at, n, (uint8_t *)coins);
        draw(coins, n, of_block, &second, scale, low, high, drawn);
        if (wide) lattice64((double *)sums + 2 * at, drawn, numbers, step);
        else lattice32((float *)sums + 2 * at, drawn, numbers, step);
    }
}
#endif
