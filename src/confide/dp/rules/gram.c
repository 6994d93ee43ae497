/* Squared norms of sums of outer products, from Gram matrices that are never stored whole.
 *
 * In: activations and output gradients of a batch, float32, the features of a row next to each other in memory. Out: for each
 * example Σ_ts (a_t·a_s + b_t b_s)(g_t·g_s) and Σ_t |a_t||g_t|. Inner products are taken of 128 terms at a time, in single
 * precision and in eight or sixteen lanes, so that no number is rounded more than 19 times (16 terms of a lane and three sums of lanes,
 * or 8 and four); what they give is added in double.
 */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 3, COLUMNS = 4,          /* of a tile: twelve sums, three rows and one column at a time fill the registers */
    BLOCK = 9,                      /* rows that stay in the first-level cache while columns go by */
    PANEL = 132,                    /* rows and columns of the part of a matrix that is formed at a time */
    DEPTH = 128, STRIDE = DEPTH + 16,  /* terms at a time; rows so far apart do not meet in the cache */
};

typedef struct {
    const float *at;                /* the first example */
    long example, row, features;    /* how far apart examples and rows are, and how long a row is */
} Batch;

typedef void (*Tile)(const float *x, const float *y, long n, double *out);

static inline __attribute__((always_inline, target("avx2,fma"))) void
into(__m256 a, __m256 b, __m256 c, __m256 d, double *out) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));  /* a and b by turns, of two lanes each */
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256 sums = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));  /* a, b, c, d */
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
    _mm256_storeu_pd(out, _mm256_add_pd(_mm256_loadu_pd(out), _mm256_cvtps_pd(four)));
}

/* The inner products of three rows of x with four of y, of n terms (a multiple of 16), added to out[3][PANEL]. */
__attribute__((target("avx2,fma"))) static void tile_avx2(const float *x, const float *y, long n, double *out) {
    __m256 sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) sum[i][j] = _mm256_setzero_ps();
    for (long k = 0; k < n; k += 8) {
        const __m256 a = _mm256_loadu_ps(x + k), b = _mm256_loadu_ps(x + STRIDE + k), c = _mm256_loadu_ps(x + 2 * STRIDE + k);
        for (int j = 0; j < COLUMNS; j++) {
            const __m256 v = _mm256_loadu_ps(y + j * STRIDE + k);
            sum[0][j] = _mm256_fmadd_ps(a, v, sum[0][j]);
            sum[1][j] = _mm256_fmadd_ps(b, v, sum[1][j]);
            sum[2][j] = _mm256_fmadd_ps(c, v, sum[2][j]);
        }
    }
    for (int i = 0; i < ROWS; i++) into(sum[i][0], sum[i][1], sum[i][2], sum[i][3], out + i * PANEL);
}

static inline __attribute__((always_inline, target("avx512f,avx512dq"))) __m256 halves(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

__attribute__((target("avx512f,avx512dq,avx2,fma"))) static void
tile_avx512(const float *x, const float *y, long n, double *out) {
    __m512 sum[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) sum[i][j] = _mm512_setzero_ps();
    for (long k = 0; k < n; k += 16) {
        const __m512 a = _mm512_loadu_ps(x + k), b = _mm512_loadu_ps(x + STRIDE + k), c = _mm512_loadu_ps(x + 2 * STRIDE + k);
        for (int j = 0; j < COLUMNS; j++) {
            const __m512 v = _mm512_loadu_ps(y + j * STRIDE + k);
            sum[0][j] = _mm512_fmadd_ps(a, v, sum[0][j]);
            sum[1][j] = _mm512_fmadd_ps(b, v, sum[1][j]);
            sum[2][j] = _mm512_fmadd_ps(c, v, sum[2][j]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        into(halves(sum[i][0]), halves(sum[i][1]), halves(sum[i][2]), halves(sum[i][3]), out + i * PANEL);
}

static Tile tile;

/* Whether this processor has what the loops of gram.c, lstm.c and keystream.c need. */
int confide_kernels(void) {  /* the number tells a library that was built from other sources */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    tile = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? tile_avx512 : tile_avx2;
    return 2;
}

static inline long least(long a, long b) { return a < b ? a : b; }

/* Copy n terms of some rows to where they lie close together, with zeros up to a whole number of tiles and lanes, and ask for the
 * `next` terms behind them: rows are far apart, and no processor foresees where the next pieces lie.
 */
static void pack(const Batch *batch, const float *from, long rows, long n, long next, float *to) {
    const long all = (rows + 11) / 12 * 12, wide = (n + 15) / 16 * 16;
    for (long i = 0; i < all; i++) {
        if (i < rows) {
            const float *row = from + i * batch->row;
            memcpy(to + i * STRIDE, row, n * sizeof(float));
            for (long k = 0; k < next; k += 16) __builtin_prefetch(row + n + k);
        }
        const long filled = i < rows ? n : 0;
        memset(to + i * STRIDE + filled, 0, (wide - filled) * sizeof(float));
    }
}

/* Inner products of `rows` rows from `first` on with `columns` rows from `other` on, of one example, into out[PANEL][PANEL].
 * Of a panel with itself only the tiles at the diagonal and below are formed.
 */
static void products(const Batch *batch, long example, long first, long rows, long other, long columns, float *packed, double *out) {
    const float *base = batch->at + example * batch->example;
    float *x = packed, *y = first == other ? x : x + PANEL * STRIDE;
    memset(out, 0, PANEL * PANEL * sizeof(double));
    for (long from = 0; from < batch->features; from += DEPTH) {
        const long n = least(batch->features - from, DEPTH), wide = (n + 15) / 16 * 16;
        const long next = least(batch->features - from - n, DEPTH);
        pack(batch, base + first * batch->row + from, rows, n, next, x);
        if (x != y) pack(batch, base + other * batch->row + from, columns, n, next, y);
        for (long block = 0; block < rows; block += BLOCK) {
            const long last = least(block + BLOCK, rows), end = x == y ? least(last, columns) : columns;
            for (long j = 0; j < end; j += COLUMNS)
                for (long i = block; i < last; i += ROWS)
                    if (x != y || j < i + ROWS) tile(x + i * STRIDE, y + j * STRIDE, wide, out + i * PANEL + j);
        }
    }
}

static int zero(const Batch *batch, long example, long row) {
    const float *at = batch->at + example * batch->example + row * batch->row;
    for (long k = 0; k < batch->features; k++)
        if (at[k] != 0) return 0;
    return 1;
}

/* square[e] = Σ_ts (a_t·a_s + extra + b_t b_s)(g_t·g_s) and spread[e] = Σ_t √((a_t·a_t + …)(g_t·g_t)), in a fixed order. `scale`
 * holds b [examples, positions], or is NULL. Where a squared length below `tiny` belongs to a row that is not zero, the
 * spread is infinite. Returns 0, or 1 if there was no memory.
 */
int confide_gram(const float *a, long a_example, long a_row, long a_features, const float *g, long g_example, long g_row,
                 long g_features, const float *scale, double extra, double tiny, long examples, long positions, int threads,
                 double *square, double *spread) {
    const Batch left = {a, a_example, a_row, a_features}, right = {g, g_example, g_row, g_features};
    const long panels = (positions + PANEL - 1) / PANEL, pairs = panels * (panels + 1) / 2, tasks = examples * pairs;
    double *parts = malloc(2 * tasks * sizeof(double));
    if (parts == NULL) return 1;
    int failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        double *by_a = aligned_alloc(64, 2 * PANEL * PANEL * sizeof(double) + 2 * PANEL * STRIDE * sizeof(float));
        double *by_g = by_a + PANEL * PANEL;
        float *packed = (float *)(by_g + PANEL * PANEL);
        if (by_a == NULL) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp for schedule(dynamic, 1)
        for (long task = 0; task < tasks; task++) {
            if (by_a == NULL) continue;
            const long e = task / pairs;
            long panel = 0, pair = task % pairs;
            while (pair > panel) pair -= ++panel;
            const long first = positions * panel / panels, rows = positions * (panel + 1) / panels - first;
            const long other = positions * pair / panels, columns = positions * (pair + 1) / panels - other;
            const float *b = scale == NULL ? NULL : scale + e * positions;
            products(&left, e, first, rows, other, columns, packed, by_a);
            products(&right, e, first, rows, other, columns, packed, by_g);
            double sum = 0, lengths = 0;
            for (long i = 0; i < rows; i++) {
                const double *x = by_a + i * PANEL, *y = by_g + i * PANEL;
                const long end = first == other ? i : columns;
                double line = 0;
                for (long j = 0; j < end; j++)
                    line += (x[j] + (b == NULL ? extra : (double)b[first + i] * b[other + j])) * y[j];
                sum += 2 * line;
                if (first != other) continue;
                const double own = x[i] + (b == NULL ? extra : (double)b[first + i] * b[first + i]);
                sum += own * y[i];
                lengths += sqrt(own * y[i]);
                if ((own < tiny && !zero(&left, e, first + i)) || (y[i] < tiny && !zero(&right, e, first + i)))
                    lengths = INFINITY;
            }
            parts[2 * task] = sum;
            parts[2 * task + 1] = lengths;
        }
        free(by_a);
    }
    for (long e = 0; e < examples; e++) {
        square[e] = spread[e] = 0;
        for (long pair = 0; pair < pairs; pair++) {
            square[e] += parts[2 * (e * pairs + pair)];
            spread[e] += parts[2 * (e * pairs + pair) + 1];
        }
    }
    free(parts);
    return failed;
}

#else
int confide_kernels(void) { return 0; }
#endif
