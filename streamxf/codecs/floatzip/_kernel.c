/* FloatZip in C: one call for a block, without the interpreter's lock.
 *
 * docs/format/floatzip.md is the norm; the Python beside this file is the reference implementation of it. This one is
 * faster, and may leave any block to the reference. Without it streamxf works, more slowly.
 *
 *   encode(block, out, work, width, row, speed=1) -> int
 *       Encode a block that begins with a float of `width` bytes (1, 2, 4 or 8). `row` is how many of them a row of
 *       their matrix has, or 0. With a `speed` of 2, planes are fixed where that costs little. Returns the size of the payload, at most len(block), at the start of `out`; 0 for a
 *       block that is best stored as it is; -1 for one with runs or matches, which the reference stores better. `out`
 *       has at least encode_bound(len(block)) bytes, and `work` work_size(len(block)).
 *
 *   decode(payload, out, work, checked=False) -> bool
 *       Decode a payload that is not stored as it is into `out`, which has exactly the size that the payload declares.
 *       True: `out` is what the format says. False: the payload is damaged, or uses what `encode` never writes, such as
 *       matches in a frame. The contents of `out` are then undefined, and the caller turns to the reference, which
 *       decodes the payload or names the damage. `work` has at least work_size(len(out)) bytes. If `checked`, the
 *       payload's last four bytes are the CRC-32C of the others, little-endian; False if it is another, and where the
 *       processor has no instruction for it.
 *
 *   crc32c(data, crc) -> int or None
 *       The CRC-32C of data that follows what has the given one. None if this processor has no instructions for it that
 *       are faster than those which everybody uses.
 *
 *   compress(data, out) -> int, decompress(frame, out) -> bool
 *       The Huffman coder by itself, for tests: a zstd frame (RFC 8878) that has literals and no sequences. `out` has
 *       encode_bound(len(data)) bytes, or exactly the frame's content size.
 *
 *   encode_difference(base, new, out, work, width, contexts, row, before) -> int
 *       Encode `new` as its difference from `base`, of the same size, a multiple of `width` bytes: 1, 2 or 4. `row` is
 *       how many elements a row of their matrix has, or 0, and `before` how many of the first row lie before the block.
 *       Returns the payload's size, at the start of `out`, or 0 if it would take more than len(out) - 8 bytes. The CRC
 *       in it is left zero where the processor has no instruction for it.
 *
 *   decode_difference(base, payload, out, work) -> int
 *       Fill `out`, of the size of `base`, with what the difference makes of it. 2: and it has its CRC; 1: it has
 *       another, or the processor has no instruction for it; 0: as False for `decode`. For both, `work` has at least
 *       difference_work_size(len(base)) bytes.
 *
 * What holds for all of them:
 * - Input may be hostile. Nothing is read or written outside the buffers that were given. Every length is checked
 *   before it is used, against what is left of the buffer. Blocks have at most 128 MiB (ValueError beyond that), so
 *   that no sum or multiple of lengths overflows a size_t of 32 bits.
 * - That holds even if another thread writes to the block or the payload meanwhile: what is checked is read once. What
 *   `encode` returns then may not decode, and what `decode` writes may be anything. `out` and `work` belong to the call
 *   until it returns, and no two buffers of a call overlap.
 * - Time is linear in the sizes of the buffers. No memory is allocated, no state is kept, and a call may run in any
 *   number of threads. The lock is released for all of it.
 * - Floating-point numbers only weigh alternatives: a wrong one would cost size, never correctness.
 * - Little-endian machines, C11 and the builtins of GCC and Clang; no intrinsics. Where GCC and glibc allow it, hot
 *   loops are compiled for several levels of x86-64, and the loader takes the best. Some have a second version, written
 *   for GCC and x86-64 with AVX2. Whichever runs, results are the same.
 *
 * In this file: Huffman codes, weights of codes, frames, planes, packed planes, levelled planes, fixed planes, blocks,
 * CRC-32C, differences (in a file of their own), the module.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h> /* setup.py defines Py_LIMITED_API */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "streamxf's kernel is for little-endian machines; without it the Python reference is used"
#endif

/* Loops that gain from wider vectors: compiled for several levels of x86-64, among which glibc's loader chooses. Other
 * C libraries cannot do that; there, with Clang, and on other machines, the compiler's target decides. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(STREAMXF_NO_CLONES)
#define HOT __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define HOT
#endif
#define RESTRICT __restrict

/* Beyond that, some functions are written for processors that have AVX2 and BMI2 (x86-64-v3), and for multiplication
 * without carries in 128, 256 or 512 bits. What a processor has is asked at run time. STREAMXF_MOST forbids what needs
 * more bits, for tests: with 0, none of these functions is used. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define PATHS 1
#ifndef STREAMXF_MOST
#define STREAMXF_MOST 512
#endif
#define HAS_V3() (STREAMXF_MOST >= 128 && __builtin_cpu_supports("x86-64-v3"))
#if defined(__AVX2__) && defined(__BMI2__) /* functions of a better target could not be inlined there */
#define AT_V3
#else
#define AT_V3 __attribute__((target("arch=x86-64-v3")))
#endif
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint8_t Bytes32 __attribute__((vector_size(32)));
typedef char Chars16 __attribute__((vector_size(16))); /* arithmetic is unsigned; some builtins want these */
typedef char Chars32 __attribute__((vector_size(32)));
typedef uint16_t Words16 __attribute__((vector_size(32)));
typedef float Floats4 __attribute__((vector_size(16)));
typedef short Shorts8 __attribute__((vector_size(16)));
typedef short Shorts16 __attribute__((vector_size(32)));
typedef int SInts8 __attribute__((vector_size(32)));
typedef uint32_t Ints8 __attribute__((vector_size(32)));
typedef long long Longs2 __attribute__((vector_size(16)));
typedef long long Longs4 __attribute__((vector_size(32)));
typedef long long Longs8 __attribute__((vector_size(64)));
#else
#define PATHS 0
#define HAS_V3() 0
#define AT_V3
#endif

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

static inline u16 rd16(const u8 *p) { u16 v; memcpy(&v, p, 2); return v; }
static inline u32 rd32(const u8 *p) { u32 v; memcpy(&v, p, 4); return v; }
static inline u64 rd64(const u8 *p) { u64 v; memcpy(&v, p, 8); return v; }
static inline void wr16(u8 *p, u16 v) { memcpy(p, &v, 2); }
static inline void wr32(u8 *p, u32 v) { memcpy(p, &v, 4); }
static inline void wr64(u8 *p, u64 v) { memcpy(p, &v, 8); }
static inline int top_bit(u32 v) { return 31 - __builtin_clz(v); }

/* -- Huffman codes, RFC 8878 section 4.2 -------------------------------------------------------------------------- */

enum {
    MAX_BITS = 11,              /* of a code */
    TABLE = 1 << MAX_BITS,
    BLOCK = 128 * 1024,         /* bytes of a zstd block */
    WEIGHTS_LOG = 6,            /* accuracy of the distribution of weights */
    WEIGHTS_TABLE = 1 << WEIGHTS_LOG,
    PART = 32 * 1024,           /* bytes that may have codes of their own */
    APART = 8 * 384,            /* bits */
};

typedef struct {
    u16 code[256];
    u8 bits[256];
    int last; /* the highest symbol that occurs */
} Codes;

HOT static void count_bytes(const u8 *RESTRICT data, size_t size, u32 *RESTRICT counts)
{
    u32 part[4][256]; /* in a single table, increments for equal neighbours would wait for each other */
    memset(part, 0, sizeof part);
    size_t i = 0;
    for (; i + 8 <= size; i += 8)
        for (size_t k = 0; k < 8; k++)
            part[k % 4][data[i + k]]++;
    for (; i < size; i++)
        part[0][data[i]]++;
    for (int s = 0; s < 256; s++)
        counts[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

/* Huffman code lengths of at most MAX_BITS that use up the code space exactly. At least two symbols must occur. */
static void code_lengths(const u32 *counts, u8 *bits)
{
    u16 order[256];
    int n = 0;
    for (int s = 0; s < 256; s++) {
        bits[s] = 0;
        if (!counts[s])
            continue;
        int at = n++;
        for (; at && counts[order[at - 1]] > counts[s]; at--)
            order[at] = order[at - 1];
        order[at] = (u16)s;
    }
    /* Huffman's tree from two queues: leaves in the order of their counts, inner nodes in the order they are made */
    u32 weight[512];
    u16 parent[512];
    for (int i = 0; i < n; i++)
        weight[i] = counts[order[i]];
    int leaf = 0, node = n, made = n;
    for (; made < 2 * n - 1; made++) {
        u32 sum = 0;
        for (int k = 0; k < 2; k++) {
            int take = leaf < n && (node == made || weight[leaf] <= weight[node]) ? leaf++ : node++;
            parent[take] = (u16)made;
            sum += weight[take];
        }
        weight[made] = sum;
    }
    u8 depth[512];
    depth[2 * n - 2] = 0;
    for (int i = 2 * n - 3; i >= 0; i--)
        depth[i] = (u8)(depth[parent[i]] < 255 ? depth[parent[i]] + 1 : 255);
    /* cut lengths to MAX_BITS, lengthen some codes until all fit, then shorten some until no room is left; `used` is
     * the sum of Kraft's inequality, in units of 2^-MAX_BITS. Rarer symbols never have shorter codes: so it is enough
     * to know how many have each length, and only the rarest of them is worth lengthening, the last shortening. */
    int used = 0, having[MAX_BITS + 1] = {0};
    for (int i = 0; i < n; i++) {
        int length = depth[i] < MAX_BITS ? depth[i] : MAX_BITS;
        having[length]++;
        used += 1 << (MAX_BITS - length);
    }
    while (used > TABLE) {
        int best = 0, at = having[MAX_BITS];
        u64 least = 0;
        for (int length = MAX_BITS - 1; length; at += having[length--]) {
            if (!having[length])
                continue;
            u64 cost = (u64)weight[at] << length; /* for the room that it frees */
            if (!best || cost < least)
                best = length, least = cost;
        }
        having[best]--, having[best + 1]++;
        used -= 1 << (MAX_BITS - best - 1);
    }
    while (used < TABLE) {
        int best = 0, at = 0;
        u64 most = 0;
        for (int length = MAX_BITS; length > 1; length--) {
            at += having[length];
            if (!having[length] || 1 << (MAX_BITS - length) > TABLE - used)
                continue;
            u64 gain = (u64)weight[at - 1] << length; /* for the room that it takes */
            if (gain >= most)
                best = length, most = gain;
        }
        having[best]--, having[best - 1]++;
        used += 1 << (MAX_BITS - best);
    }
    for (int length = MAX_BITS, i = 0; length; length--)
        for (int k = 0; k < having[length]; k++)
            bits[order[i++]] = (u8)length;
}

/* Canonical codes, in the order that the format fixes: the longest first, and by symbol among those of one length.
 * Returns the greatest length. */
static int assign_codes(Codes *codes)
{
    int longest = 0, having[MAX_BITS + 1] = {0};
    codes->last = 0;
    for (int s = 0; s < 256; s++) {
        int length = codes->bits[s];
        if (length)
            codes->last = s, having[length]++;
        if (length > longest)
            longest = length;
    }
    u32 next[MAX_BITS + 1] = {0}, code = 0;
    for (int length = longest; length; length--) {
        next[length] = code;
        code = (code + (u32)having[length]) >> 1;
    }
    for (int s = 0; s <= codes->last; s++)
        codes->code[s] = (u16)next[codes->bits[s]]++;
    return longest;
}

/* -- weights of codes, as they are stored ------------------------------------------------------------------------- */

typedef struct {
    u64 bits;
    int count;
    u8 *at;
} BitWriter;

static inline void put(BitWriter *w, u32 value, int count)
{
    w->bits |= (u64)value << w->count;
    w->count += count;
    while (w->count >= 8) {
        *w->at++ = (u8)w->bits;
        w->bits >>= 8;
        w->count -= 8;
    }
}

/* Code the n weights with finite state entropy, RFC 8878 section 4.1: their distribution, then a bit stream of two
 * interleaved states. Returns how many of the 512 bytes of `out` that takes, or 0 if it cannot be done. A tree's
 * description has room for 127 of them. */
static size_t store_weights_fse(const u8 *weights, int n, u8 *out)
{
    int counts[MAX_BITS + 2] = {0}, norm[MAX_BITS + 2] = {0};
    int highest = 0, kinds = 0;
    for (int i = 0; i < n; i++)
        counts[weights[i]]++;
    for (int w = 0; w <= MAX_BITS; w++)
        if (counts[w])
            highest = w, kinds++;
    if (kinds < 2 || n < 3)
        return 0;
    /* shares of the table: at least one cell for each weight that occurs, and what is left for the most frequent one */
    int left = WEIGHTS_TABLE, most = 0;
    for (int w = 0; w <= highest; w++) {
        if (!counts[w])
            continue;
        norm[w] = counts[w] * WEIGHTS_TABLE / n;
        if (!norm[w])
            norm[w] = 1;
        left -= norm[w];
        if (counts[w] > counts[most])
            most = w;
    }
    while (left < 0) {
        int big = most;
        for (int w = 0; w <= highest; w++)
            if (norm[w] > norm[big])
                big = w;
        norm[big]--, left++;
    }
    norm[most] += left;
    if (norm[most] >= WEIGHTS_TABLE)
        return 0;

    /* the distribution: each share in as many bits as the cells that are left call for */
    BitWriter w = {0, 0, out};
    put(&w, WEIGHTS_LOG - 5, 4);
    int remaining = WEIGHTS_TABLE + 1, threshold = WEIGHTS_TABLE, width = WEIGHTS_LOG + 1;
    for (int s = 0; s <= highest && remaining > 1;) {
        int share = norm[s] + 1; /* 1 stands for zero; 0, for "less than one", is not used here */
        int small = 2 * threshold - 1 - remaining;
        remaining -= norm[s];
        int value = share;
        if (value >= threshold)
            value += small;
        put(&w, (u32)value, width - (value < small));
        s++;
        if (share == 1) { /* further zeros are counted in digits of two bits, of which 3 means that one more follows */
            int zeros = 0;
            while (s <= highest && !norm[s])
                s++, zeros++;
            while (zeros >= 3)
                put(&w, 3, 2), zeros -= 3;
            put(&w, (u32)zeros, 2);
        }
        while (remaining < threshold)
            width--, threshold >>= 1;
    }
    if (w.count)
        *w.at++ = (u8)w.bits;

    /* symbols are spread over the table; `states` lists, symbol by symbol, the states that decode to it */
    u8 symbol[WEIGHTS_TABLE];
    u16 states[WEIGHTS_TABLE];
    int position = 0, mask = WEIGHTS_TABLE - 1, step = (WEIGHTS_TABLE >> 1) + (WEIGHTS_TABLE >> 3) + 3;
    for (int s = 0; s <= highest; s++)
        for (int k = 0; k < norm[s]; k++) {
            symbol[position] = (u8)s;
            position = (position + step) & mask;
        }
    int begin[MAX_BITS + 2], fill[MAX_BITS + 2], total = 0;
    for (int s = 0; s <= highest; s++) {
        begin[s] = fill[s] = total;
        total += norm[s];
    }
    for (int u = 0; u < WEIGHTS_TABLE; u++)
        states[fill[symbol[u]]++] = (u16)(WEIGHTS_TABLE + u);

    u8 *start = w.at;
    BitWriter b = {0, 0, start};
    u32 state[2] = {0, 0};
    int ready[2] = {0, 0};
    for (int i = n - 1; i >= 0; i--) { /* backwards, since the decoder reads from the end */
        int which = i & 1, s = weights[i];
        if (!ready[which]) { /* to begin with, any state that decodes to the symbol will do */
            state[which] = states[begin[s]];
            ready[which] = 1;
            continue;
        }
        /* write out low bits of the state until the rest is within the symbol's range */
        u32 v = state[which];
        int bits = 0;
        while ((v >> bits) >= (u32)(2 * norm[s]))
            bits++;
        put(&b, v & ((1u << bits) - 1), bits);
        state[which] = states[begin[s] + (int)(v >> bits) - norm[s]];
    }
    put(&b, state[1] & (u32)mask, WEIGHTS_LOG);
    put(&b, state[0] & (u32)mask, WEIGHTS_LOG);
    put(&b, 1, 1); /* the end mark, from which the decoder starts */
    if (b.count)
        *b.at++ = (u8)b.bits;
    return (size_t)(b.at - out);
}

/* Store the description of a tree in at most 128 bytes; returns its size, 0 if it cannot be stored. */
static size_t store_tree(const Codes *codes, int longest, u8 *out)
{
    u8 weights[256];
    for (int s = 0; s < codes->last; s++) /* the last symbol's follows from the others */
        weights[s] = (u8)(codes->bits[s] ? longest + 1 - codes->bits[s] : 0);
    u8 packed[512];
    size_t size = store_weights_fse(weights, codes->last, packed);
    size_t direct = ((size_t)codes->last + 1) / 2;
    if (codes->last <= 128 && (!size || direct < size || size > 127)) {
        out[0] = (u8)(127 + codes->last);
        for (int s = 0; s < codes->last; s += 2)
            out[1 + s / 2] = (u8)(weights[s] << 4 | (s + 1 < codes->last ? weights[s + 1] : 0));
        return 1 + direct;
    }
    if (!size || size > 127)
        return 0;
    out[0] = (u8)size;
    memcpy(out + 1, packed, size);
    return 1 + size;
}

/* Write one stream of codes, from the last symbol to the first. `out` has room for 8 bytes more than the codes take. An
 * entry of `table` has a code in its highest bits and the code's length in its lowest. Codes enter `bits` at the top,
 * and each moves the earlier ones down. Four are joined to one before they do, since whatever is put into `bits` has to
 * wait for what was put there before; then two of these, if both have room above their lowest four bits, beside 7 bits
 * from before. The lengths come along in these lowest bits. */
HOT static size_t put_stream(const u8 *data, size_t size, const u64 *table, u8 *out)
{
    u64 bits = 0, count = 0; /* of `count`, only the lowest byte means anything: how many bits are pending */
    u8 *at = out;
    size_t i = size;
#define JOIN4(joined, length, n) \
    u64 joined, length; { \
        u64 a = table[data[i - n - 1]], b = table[data[i - n - 2]], half; \
        u64 c = table[data[i - n - 3]], d = table[data[i - n - 4]]; \
        half = c + d, length = a + b + half; \
        joined = (a >> (b & 63) | b) >> (half & 63) | c >> (d & 63) | d; }
#define WRITE(joined, length) { \
        bits = bits >> (length & 63) | joined; \
        count += length; \
        wr64(at, bits >> (-count & 63)); /* `count` may be 0 if the block changes */ \
        at += (count & 63) >> 3; \
        count &= 7; }
    for (; i >= 8; i -= 8) {
        JOIN4(first, before, 0)
        JOIN4(second, after, 4)
        u64 both = before + after;
        if ((u8)both > 64 - 4 - 7) {
            WRITE(first, before)
            WRITE(second, after)
        } else {
            second |= first >> (after & 63);
            WRITE(second, both)
        }
    }
    for (; i; i--) {
        u64 e = table[data[i - 1]];
        WRITE(e, e)
    }
#undef JOIN4
#undef WRITE
    bits = bits >> 1 | 1ull << 63;
    count = (count & 63) + 1;
    wr64(at, bits >> (64 - count));
    return (size_t)(at - out) + (size_t)(count + 7) / 8;
}

/* Write the content of one compressed block: the literals' header, the tree unless an earlier one is reused (tree_size
 * is 0), four streams, and no sequences. `expected` is about what the streams take. Returns the size; 0 if nothing
 * would be gained. By then, up to 11/8 of `size` and 256 bytes of `out` may have been written. */
static size_t put_literals(const u8 *data, size_t size, const u64 *table, const u8 *tree, size_t tree_size, u8 *out,
                           size_t expected)
{
    if (size < 256 || expected + tree_size + 20 >= size)
        return 0;
    size_t head = size < 1024 ? 3 : size < 16384 ? 4 : 5;
    u8 *at = out + head;
    memcpy(at, tree, tree_size);
    at += tree_size;
    u8 *jumps = at;
    at += 6;
    size_t part = (size + 3) / 4;
    for (int k = 0; k < 4; k++) {
        size_t begin = (size_t)k * part, length = k < 3 ? part : size - 3 * part;
        size_t made = put_stream(data + begin, length, table, at);
        if (made > 65535)
            return 0;
        if (k < 3)
            wr16(jumps + 2 * k, (u16)made);
        at += made;
    }
    size_t stored = (size_t)(at - out) - head;
    if (stored + head + 4 >= size)
        return 0;
    u64 kind = tree_size ? 2 : 3;
    u64 format = head == 3 ? 1 : head == 4 ? 2 : 3;
    int wide = head == 3 ? 10 : head == 4 ? 14 : 18;
    u64 word = kind | format << 2 | (u64)size << 4 | (u64)stored << (4 + wide);
    for (size_t k = 0; k < head; k++)
        out[k] = (u8)(word >> (8 * k));
    *at++ = 0; /* no sequences */
    return (size_t)(at - out);
}

/* A part of a frame, whose bytes share a table of codes. */
typedef struct {
    u32 counts[256];
    size_t size;
    float bits; /* their entropy */
} Part;

/* Logarithms are a ten-thousandth off, which weighs nothing here. */
static void weigh(Part *part)
{
    float sums[8] = {0}, sum = 0;
    for (int s = 0; s < 256; s += 8)
        for (int k = 0; k < 8; k++) {
            float count = (float)part->counts[s + k], m;
            u32 word;
            memcpy(&word, &count, 4);
            int exponent = (int)(word >> 23) - 127;
            word = (word & 0x7FFFFF) | 0x3F800000;
            memcpy(&m, &word, 4); /* count is m * 2^exponent; the logarithm of m is about this polynomial */
            m = (((-0.07844f * m + 0.62603f) * m - 2.07834f) * m + 4.02921f) * m - 2.49835f;
            sums[k] += count * ((float)exponent + m);
        }
    for (int k = 0; k < 8; k++)
        sum += sums[k];
    part->bits = (float)part->size * log2f((float)part->size + 1) - sum;
}

/* Add what follows a part to it. Returns 0 if both are better off apart, by more than what a table takes to store, and
 * to set up when it is read. */
static int merge_parts(Part *part, const Part *next)
{
    Part both = {.size = part->size + next->size};
    for (int s = 0; s < 256; s++)
        both.counts[s] = part->counts[s] + next->counts[s];
    weigh(&both);
    if (both.bits > part->bits + next->bits + APART)
        return 0;
    *part = both;
    return 1;
}

/* Write the blocks of a part. Returns where they end. */
static u8 *put_part(const u8 *data, const Part *part, int is_last, u8 *at)
{
    Codes codes;
    u64 table[256];
    u8 tree[132];
    size_t tree_size = 0, size = part->size;
    u64 expected = 0;
    int kinds = 0;
    for (int s = 0; s < 256; s++)
        kinds += part->counts[s] > 0;
    if (kinds > 1) {
        code_lengths(part->counts, codes.bits);
        int longest = assign_codes(&codes);
        tree_size = store_tree(&codes, longest, tree);
        for (int s = 0; s < 256; s++) {
            table[s] = codes.bits[s] ? (u64)codes.code[s] << (64 - codes.bits[s]) | codes.bits[s] : 0;
            expected += (u64)part->counts[s] * codes.bits[s];
        }
    }
    size_t pending = tree_size; /* the first block of coded literals has the tree */
    /* two blocks are read at once, and faster than a single one */
    size_t most = size <= BLOCK / 2 ? BLOCK / 2 : (size - 1) / ((size - 1) / (2 * BLOCK) + 1) / 2 + 1, done = 0;
    do {
        size_t some = size - done < most ? size - done : most, stored = some;
        u32 last = is_last && done + some == size, kind = 0;
        if (kinds == 1) {
            kind = 1;
            at[3] = data[0];
            stored = 1;
        } else if (tree_size) {
            size_t share = (size_t)(expected / 8 * some / size);
            size_t made = put_literals(data + done, some, table, tree, pending, at + 3, share);
            if (made && made < some) {
                kind = 2;
                stored = made;
                pending = 0;
            }
        }
        if (!kind)
            memcpy(at + 3, data + done, some);
        u32 word = last | kind << 1 | (u32)(kind == 1 ? some : stored) << 3;
        at[0] = (u8)word, at[1] = (u8)(word >> 8), at[2] = (u8)(word >> 16);
        at += 3 + stored;
        done += some;
    } while (done < size);
    return at;
}

/* Write a frame and return its size: at most `size`, 9 bytes, and 3 for each of its blocks. Beyond that, `out` has room
 * for what put_literals may write to no avail. Rows, gates or heads of another kind get codes of their own. */
static size_t put_frame(const u8 *data, size_t size, u8 *out)
{
    u8 *at = out;
    wr32(at, 0xFD2FB528u);
    at += 4;
    if (size < 256) {
        *at++ = 0x20;
        *at++ = (u8)size;
    } else if (size < 65536 + 256) {
        *at++ = 0x60;
        wr16(at, (u16)(size - 256));
        at += 2;
    } else {
        *at++ = 0xA0;
        wr32(at, (u32)size);
        at += 4;
    }
    Part part, next = {.size = 0};
    size_t counted = 0, done = 0;
    do {
        part = next; /* what was not merged with the part before, or nothing yet */
        for (next.size = 0; counted < size; next.size = 0) {
            next.size = size - counted < 2 * PART ? size - counted : PART;
            count_bytes(data + counted, next.size, next.counts);
            weigh(&next);
            counted += next.size;
            if (!part.size)
                part = next;
            else if (!merge_parts(&part, &next))
                break;
        }
        at = put_part(data + done, &part, !next.size, at);
        done += part.size;
    } while (next.size);
    return (size_t)(at - out);
}

/* -- reading frames ----------------------------------------------------------------------------------------------- */

typedef struct {
    u16 entry[TABLE]; /* symbol << 8 | length of its code, by the next MAX_BITS bits of the stream */
    u32 pair[TABLE];  /* the same for the next two symbols, see pair_up */
    int ready, paired;
} Lookup;

/* The weights that were coded with finite state entropy: at most 255, and -1 if they are damaged. */
static int read_weights_fse(const u8 *in, size_t size, u8 *weights)
{
    /* the distribution */
    u64 have = 0;
    int bits = 0;
    size_t used = 0;
#define FILL while (bits <= 32) { have |= (u64)(used < size ? in[used] : 0) << bits; used++; bits += 8; }
#define DROP(n) { have >>= (n); bits -= (n); }
    FILL
    int log = (int)(have & 15) + 5;
    DROP(4)
    if (log > WEIGHTS_LOG)
        return -1;
    int table_size = 1 << log, remaining = table_size + 1, threshold = table_size, width = log + 1;
    int norm[16] = {0}, n = 0;
    while (remaining > 1 && n <= 15) {
        FILL
        int small = 2 * threshold - 1 - remaining, value;
        if ((int)(have & (u64)(threshold - 1)) < small) {
            value = (int)(have & (u64)(threshold - 1));
            DROP(width - 1)
        } else {
            value = (int)(have & (u64)(2 * threshold - 1));
            if (value >= threshold)
                value -= small;
            DROP(width)
        }
        int share = value - 1;
        norm[n++] = share;
        remaining -= share < 0 ? 1 : share;
        if (remaining < 1)
            return -1;
        if (!share)
            for (;;) {
                FILL
                int zeros = (int)(have & 3);
                DROP(2)
                n += zeros;
                if (n > 15)
                    return -1;
                if (zeros < 3)
                    break;
            }
        while (remaining < threshold)
            width--, threshold >>= 1;
    }
    if (remaining != 1 || n > MAX_BITS + 2)
        return -1;
    size_t head = used - (size_t)bits / 8; /* whole bytes of which no bit was used go back */
    if (head >= size)
        return -1;
#undef FILL
#undef DROP
    /* the states */
    u8 symbol[WEIGHTS_TABLE], width_of[WEIGHTS_TABLE];
    u16 base[WEIGHTS_TABLE];
    int next[16], high = table_size - 1, mask = table_size - 1, step = (table_size >> 1) + (table_size >> 3) + 3;
    for (int s = 0; s < n; s++) {
        next[s] = norm[s] < 0 ? 1 : norm[s];
        if (norm[s] < 0)
            symbol[high--] = (u8)s;
    }
    int position = 0;
    for (int s = 0; s < n; s++)
        for (int k = 0; k < norm[s]; k++) {
            symbol[position] = (u8)s;
            do
                position = (position + step) & mask;
            while (position > high);
        }
    if (position)
        return -1;
    for (int u = 0; u < table_size; u++) {
        int v = next[symbol[u]]++;
        width_of[u] = (u8)(log - top_bit((u32)v));
        base[u] = (u16)((v << width_of[u]) - table_size);
    }
    /* the bits, from the end */
    const u8 *stream = in + head;
    size_t length = size - head;
    const u8 final = stream[length - 1];
    if (!final)
        return -1;
    long at = (long)length * 8 - (8 - top_bit(final)); /* bits that are left */
    int count = 0;
    u32 state[2];
#define TAKE(into, n) { \
        u32 v_ = 0; \
        for (int k_ = 0; k_ < (n); k_++) { \
            at--; \
            v_ = v_ << 1 | (at >= 0 ? (u32)(stream[at >> 3] >> (at & 7)) & 1 : 0); \
        } \
        (into) = v_; }
    TAKE(state[0], log)
    TAKE(state[1], log)
    if (at < 0)
        return -1;
    for (int which = 0;; which ^= 1) {
        if (count >= 254)
            return -1;
        weights[count++] = symbol[state[which]];
        u32 more;
        TAKE(more, width_of[state[which]])
        state[which] = base[state[which]] + more;
        if (at < 0) { /* more bits than there are: the other state's symbol is the last */
            weights[count++] = symbol[state[which ^ 1]];
            break;
        }
    }
#undef TAKE
    return count;
}

/* Read the description of a tree; returns its size in bytes, 0 if it is damaged. */
static size_t read_tree(const u8 *in, size_t size, Lookup *lookup)
{
    u8 weights[256];
    int n;
    size_t used;
    lookup->ready = lookup->paired = 0;
    if (!size)
        return 0;
    const u8 head = in[0];
    if (head >= 128) {
        n = head - 127;
        used = 1 + ((size_t)n + 1) / 2;
        if (used > size)
            return 0;
        for (int s = 0; s < n; s++)
            weights[s] = (u8)(s & 1 ? in[1 + s / 2] & 15 : in[1 + s / 2] >> 4);
    } else {
        used = 1 + (size_t)head;
        if (!head || used > size)
            return 0;
        n = read_weights_fse(in + 1, head, weights);
        if (n < 1)
            return 0;
    }
    u32 sum = 0;
    int longest = 0; /* how many codes have the greatest length, which is weight 1 */
    for (int s = 0; s < n; s++) {
        if (weights[s] > MAX_BITS)
            return 0;
        sum += weights[s] ? 1u << (weights[s] - 1) : 0;
        longest += weights[s] == 1;
    }
    if (!sum)
        return 0;
    int log = top_bit(sum) + 1;
    u32 rest = (1u << log) - sum;
    if (log > MAX_BITS || rest & (rest - 1)) /* the last symbol's weight, which is not stored, fills the table */
        return 0;
    weights[n] = (u8)(top_bit(rest) + 1);
    longest += weights[n++] == 1;
    if (longest < 2) /* the longest codes are siblings in the tree */
        return 0;
    /* each symbol fills a run of the table, the lowest weights first */
    u32 at = 0;
    int spread = MAX_BITS - log;
    for (int w = 1; w <= log; w++)
        for (int s = 0; s < n; s++)
            if (weights[s] == w) {
                u16 entry = (u16)(s << 8 | (log + 1 - w));
                u32 run = (1u << (w - 1)) << spread;
                for (u32 k = 0; k < run; k++)
                    lookup->entry[at + k] = entry;
                at += run;
            }
    lookup->ready = at == TABLE;
    return lookup->ready ? used : 0;
}

/* One of a block's streams of codes, which is read from its end. */
typedef struct {
    const u8 *start;
    long left; /* how many bits are not read yet */
    u8 *out, *end;
    const u16 *entries;
} Stream;

static int open_stream(Stream *stream, const u8 *in, size_t size, u8 *out, size_t made, const u16 *entries)
{
    const u8 final = size ? in[size - 1] : 0;
    if (!final)
        return 0;
    Stream opened = {in, (long)size * 8 - (8 - top_bit(final)), out, out + made, entries};
    *stream = opened;
    return 1;
}

/* The next MAX_BITS bits. */
static inline u32 peek(const Stream *stream)
{
    long from = stream->left - MAX_BITS;
    u32 value = 0;
    if (from >= 0) {
        const u8 *p = stream->start + (from >> 3);
        long rest = ((stream->left + 7) >> 3) - (from >> 3);
        for (long k = 0; k < rest; k++)
            value |= (u32)p[k] << (8 * k);
        return value >> (from & 7) & (TABLE - 1);
    }
    for (long k = 0; k < (stream->left + 7) >> 3; k++) /* before the stream's beginning, zeros */
        value |= (u32)stream->start[k] << (8 * k);
    return value << -from & (TABLE - 1);
}

/* Read a stream symbol by symbol, and never beyond its ends: the rest of one, or a short one. */
static int read_rest(Stream *stream)
{
    for (u8 *out = stream->out; out < stream->end; out++) {
        u16 entry = stream->entries[peek(stream)];
        stream->left -= entry & 255;
        if (stream->left < 0)
            return 0;
        *out = (u8)(entry >> 8);
    }
    return stream->left == 0;
}

/* Several streams are read at once, FEW symbols of each between two loads: a symbol has to wait for the length of the
 * one before it, but not for other streams. `bits` are the 8 bytes at `ip`, shifted left by as many bits as were used:
 * the next ones are at the top. The lowest bit that is set is no data but a mark, so that the zeros below it count the
 * bits that were used. After a load these are at most 8, FEW symbols later at most 8 + FEW * MAX_BITS = 63: the mark
 * never gets lost, and a load never moves `ip` by more than 7 bytes.
 *
 * MANY symbols of 6 bits on average nearly always leave the mark where it is, too. If one of them needed it or what is
 * below it, nothing is left of `bits`; then the pass counts for nothing, and FEW are read from where it began. */
typedef struct {
    const u8 *ip;
    u64 bits;
} Window;

#define SYMBOL(t, k, n, at) { u16 e = (t)[b##k >> (64 - MAX_BITS)]; b##k <<= e & 63; (at)[n] = (u8)(e >> 8); }
#define LOAD(k) { int z = __builtin_ctzll(b##k); i##k -= z >> 3; w[k].bits = b##k = (rd64(i##k) | 1) << (z & 7); }

enum { FEW = 5, MANY = 7 };

HOT static void read_four(Window *w, const Stream *s, long passes)
{
    const u16 *t = s[0].entries;
    const u8 *i0 = w[0].ip, *i1 = w[1].ip, *i2 = w[2].ip, *i3 = w[3].ip;
    u64 b0 = w[0].bits, b1 = w[1].bits, b2 = w[2].bits, b3 = w[3].bits;
    u8 *o0 = s[0].out, *o1 = s[1].out, *o2 = s[2].out, *o3 = s[3].out;
    for (; passes > 0; passes--) {
#define ALL(n) SYMBOL(t, 0, n, o0) SYMBOL(t, 1, n, o1) SYMBOL(t, 2, n, o2) SYMBOL(t, 3, n, o3)
        ALL(0) ALL(1) ALL(2) ALL(3) ALL(4)
#undef ALL
        LOAD(0) LOAD(1) LOAD(2) LOAD(3)
        o0 += FEW, o1 += FEW, o2 += FEW, o3 += FEW;
    }
    w[0].ip = i0, w[1].ip = i1, w[2].ip = i2, w[3].ip = i3;
}

enum { FETCH = 256, LINE = 64 /* bytes of a line of the cache */ };

/* The streams of two blocks, each of which gives `part` symbols, right after the ones before it. That is a constant,
 * so that one register suffices for all the places that symbols go to. Reading codes needs no memory beyond the caches,
 * and writing elements later needs little else; so what is at `target` comes to the cache meanwhile, FETCH bytes for
 * each pass, or none if `step` is 0. Returns how many passes count. */
static inline __attribute__((always_inline)) long read_eight(Window *w, const Stream *s, long passes, const u8 *target,
                                                             size_t step, const size_t part, const int symbols)
{
    const u16 *t = s[0].entries, *u = s[4].entries;
    const u8 *i0 = w[0].ip, *i1 = w[1].ip, *i2 = w[2].ip, *i3 = w[3].ip;
    const u8 *i4 = w[4].ip, *i5 = w[5].ip, *i6 = w[6].ip, *i7 = w[7].ip;
    u64 b0 = w[0].bits, b1 = w[1].bits, b2 = w[2].bits, b3 = w[3].bits;
    u64 b4 = w[4].bits, b5 = w[5].bits, b6 = w[6].bits, b7 = w[7].bits;
    u8 *o = s[0].out;
    long left = passes;
    for (; left > 0; left--) {
#define ALL(n) \
        SYMBOL(t, 0, n, o) SYMBOL(t, 1, n, o + part) SYMBOL(t, 2, n, o + 2 * part) SYMBOL(t, 3, n, o + 3 * part) \
        SYMBOL(u, 4, n, o + 4 * part) SYMBOL(u, 5, n, o + 5 * part) SYMBOL(u, 6, n, o + 6 * part) \
        SYMBOL(u, 7, n, o + 7 * part)
        ALL(0) ALL(1) ALL(2) ALL(3) ALL(4)
        if (symbols == MANY) {
            ALL(5) ALL(6)
            if (!b0 || !b1 || !b2 || !b3 || !b4 || !b5 || !b6 || !b7)
                break;
        }
#undef ALL
        LOAD(0) LOAD(1) LOAD(2) LOAD(3) LOAD(4) LOAD(5) LOAD(6) LOAD(7)
        o += symbols;
        for (int at = 0; at < FETCH; at += LINE)
            __builtin_prefetch(target + at, 0, 2);
        target += step;
    }
    w[0].ip = i0, w[1].ip = i1, w[2].ip = i2, w[3].ip = i3, w[4].ip = i4, w[5].ip = i5, w[6].ip = i6, w[7].ip = i7;
    return passes - left;
}
#undef SYMBOL
#undef LOAD

HOT static long read_whole(Window *w, const Stream *s, long passes, const u8 *target, size_t step, int symbols)
{
    return symbols == MANY ? read_eight(w, s, passes, target, step, BLOCK / 4, MANY)
                           : read_eight(w, s, passes, target, step, BLOCK / 4, FEW);
}
HOT static long read_halves(Window *w, const Stream *s, long passes, const u8 *target, size_t step, int symbols)
{
    return symbols == MANY ? read_eight(w, s, passes, target, step, BLOCK / 8, MANY)
                           : read_eight(w, s, passes, target, step, BLOCK / 8, FEW);
}

/* What the reading of frames needs beside their buffers. */
typedef struct {
    Lookup lookups[2]; /* of the newest tree, and of the one before it, which streams that wait may need */
    int newest;
    Stream waiting[8]; /* those of a block that is best read together with the next one, and then of both */
    int count;
    const u8 *target, *target_end; /* what is to be brought to the cache meanwhile: memory for the elements */
} Reader;

#if PATHS
/* Where two codes often have at most MAX_BITS bits together, both are looked up at once. Each of LOOKUPS in a stream
 * between two loads gives one or two symbols. How many it were does not matter at first: what was looked up is kept,
 * PASSES times, and symbols are then moved together, four entries at a time. */
enum { LOOKUPS = 5, PASSES = 32, FOUND = LOOKUPS * PASSES };

/* The lowest byte of an entry says how many bits it takes, the next two are the symbols, and the highest bit is set if
 * there are two. */
AT_V3 static void pair_up(Lookup *lookup)
{
    const SInts8 all = ~(SInts8){0};
    SInts8 at = {0, 1, 2, 3, 4, 5, 6, 7};
    for (u32 i = 0; i < TABLE; i += 8, at += 8) {
        Shorts8 entries;
        memcpy(&entries, lookup->entry + i, sizeof entries);
        SInts8 first = __builtin_ia32_pmovzxwd256(entries), next = at << (first & 15) & (TABLE - 1);
        /* two bytes more than an entry has are read, which after the last one are those of `pair` */
        SInts8 second = __builtin_ia32_gathersiv8si(next, (const int *)(const void *)lookup->entry, next, all, 2);
        SInts8 bits = (first & 15) + (second & 15), alone = bits > MAX_BITS;
        SInts8 both = (int)0x80000000 | (second & 0xFF00) << 8 | (first & 0xFF00) | bits;
        both = (first & alone) | (both & ~alone);
        memcpy(lookup->pair + i, &both, sizeof both);
    }
    lookup->paired = 1;
}

/* As in read_eight, a constant distance between the places of streams suffices with one register for all. */
AT_V3 static void look_up(Window *w, const u32 *t, const u32 *u, u32 *found, long passes)
{
    u64 b0 = w[0].bits, b1 = w[1].bits, b2 = w[2].bits, b3 = w[3].bits;
    u64 b4 = w[4].bits, b5 = w[5].bits, b6 = w[6].bits, b7 = w[7].bits;
    int down = 64 - MAX_BITS;
    __asm__("" : "+r"(down)); /* by a register, shifting needs no copy before it */
    for (u32 *end = found + LOOKUPS * passes; found < end; found += LOOKUPS) {
#define ENTRY(t, k, n) { u32 e = t[b##k >> down]; b##k <<= e & 63; found[FOUND * k + n] = e; }
#define ALL(n) \
        ENTRY(t, 0, n) ENTRY(t, 1, n) ENTRY(t, 2, n) ENTRY(t, 3, n) \
        ENTRY(u, 4, n) ENTRY(u, 5, n) ENTRY(u, 6, n) ENTRY(u, 7, n)
        ALL(0) ALL(1) ALL(2) ALL(3) ALL(4)
#undef ALL
#undef ENTRY
        __asm__("" : : : "memory"); /* there are no registers for where streams are, so they stay in `w` */
#define LOAD(k) { \
            u64 z = (u64)__builtin_ctzll(b##k); \
            const u8 *ip = w[k].ip; \
            __asm__("" : "+r"(ip)); /* or it would be subtracted from in memory, and read again */ \
            ip -= z >> 3; \
            w[k].ip = ip; \
            b##k = (rd64(ip) | 1) << (z & 7); }
        LOAD(0) LOAD(1) LOAD(2) LOAD(3) LOAD(4) LOAD(5) LOAD(6) LOAD(7)
#undef LOAD
    }
    w[0].bits = b0, w[1].bits = b1, w[2].bits = b2, w[3].bits = b3;
    w[4].bits = b4, w[5].bits = b5, w[6].bits = b6, w[7].bits = b7;
}

/* Where the symbols of four entries are, by their highest bits. */
static const u8 SYMBOLS[17][8] = {
    {1, 5, 9, 13}, {1, 2, 5, 9, 13}, {1, 5, 6, 9, 13}, {1, 2, 5, 6, 9, 13},
    {1, 5, 9, 10, 13}, {1, 2, 5, 9, 10, 13}, {1, 5, 6, 9, 10, 13}, {1, 2, 5, 6, 9, 10, 13},
    {1, 5, 9, 13, 14}, {1, 2, 5, 9, 13, 14}, {1, 5, 6, 9, 13, 14}, {1, 2, 5, 6, 9, 13, 14},
    {1, 5, 9, 10, 13, 14}, {1, 2, 5, 9, 10, 13, 14}, {1, 5, 6, 9, 10, 13, 14}, {1, 2, 5, 6, 9, 10, 13, 14},
};

/* Move the symbols of entries together. Returns where they end; for each four, 8 bytes are written. */
AT_V3 static u8 *gather(const u32 *found, long entries, u8 *out)
{
#define FOUR(n) { \
        Bytes16 four, from; \
        memcpy(&four, found + 4 * n, 16); \
        u32 second = (u32)__builtin_ia32_movmskps((Floats4)four); \
        memcpy(&from, SYMBOLS[second], 16); \
        four = (Bytes16)__builtin_ia32_pshufb128((Chars16)four, (Chars16)from); \
        memcpy(out, &four, 8); \
        out += 4, out += __builtin_popcountll(second); }
    for (const u32 *end = found + entries; found < end; found += 4 * LOOKUPS) {
        FOUR(0) FOUR(1) FOUR(2) FOUR(3) FOUR(4)
    }
#undef FOUR
    return out;
}
#endif

/* How often so many symbols can be read of each of some streams, where that takes at most 7 bytes. */
static long passes_of(const Window *w, const Stream *s, int count, long symbols)
{
    long passes = BLOCK;
    for (int k = 0; k < count; k++) {
        long most = (s[k].end - s[k].out) / symbols, room = (w[k].ip - s[k].start) / 7;
        most = most < room ? most : room;
        passes = passes < most ? passes : most;
    }
    return passes;
}

/* Read most of eight streams. */
static void read_pairs(Window *w, Stream *s, Reader *reader)
{
#if PATHS
    const u32 *pairs[2];
    u32 found[8][FOUND];
    for (int half = 0; half < 2; half++) {
        Lookup *lookup = &reader->lookups[s[4 * half].entries != reader->lookups[0].entry];
        if (!lookup->paired)
            pair_up(lookup);
        pairs[half] = lookup->pair;
    }
    for (long passes; (passes = passes_of(w, s, 8, 2 * LOOKUPS)) >= 4;) { /* entries are a multiple of 4 * LOOKUPS */
        passes = passes < PASSES ? passes / 4 * 4 : PASSES;
        look_up(w, pairs[0], pairs[1], found[0], passes);
        for (int k = 0; k < 8; k++) {
            for (long f = 0; f < passes / 8 && reader->target_end - reader->target >= FETCH; f++) {
                for (int at = 0; at < FETCH; at += LINE)
                    __builtin_prefetch(reader->target + at, 0, 2);
                reader->target += FETCH;
            }
            s[k].out = gather(found[k], LOOKUPS * passes, s[k].out);
        }
    }
#else
    (void)w, (void)s, (void)reader;
#endif
}

/* Read the streams that wait: those of one block, or of two. Returns whether each stream ends where it has to. */
static int read_waiting(Reader *reader)
{
    Stream *s = reader->waiting;
    Window w[8];
    int count = reader->count, fast = count > 0;
    long bits = 0, all = 0, part = count == 8 ? s[1].out - s[0].out : 0;
    reader->count = 0;
    for (int k = 0; k < count; k++) {
        fast &= s[k].left >= 128, bits += s[k].left, all += s[k].end - s[k].out;
        if (s[k].end - s[k].out != part || (part != BLOCK / 4 && part != BLOCK / 8))
            part = 0; /* read_eight is for these two */
    }
    if (fast) {
        for (int k = 0; k < count; k++) {
            /* the end mark and what is above it are used already: 1 to 8 bits */
            w[k].ip = s[k].start + s[k].left / 8 - 7;
            w[k].bits = (rd64(w[k].ip) | 1) << (8 - s[k].left % 8);
        }
        const int usual = bits <= 6 * all ? MANY : FEW;
        if (count == 8 && usual == MANY && HAS_V3())
            read_pairs(w, s, reader);
        else if (part)
            for (int symbols = usual;;) {
                long passes = passes_of(w, s, count, symbols), done;
                passes = symbols == usual || !passes ? passes : 1;
                long fetches = (reader->target_end - reader->target) / FETCH;
                size_t step = fetches ? FETCH : 0;
                passes = fetches && fetches < passes ? fetches : passes;
                if (!passes)
                    break;
                done = (part == BLOCK / 4 ? read_whole : read_halves)(w, s, passes, reader->target, step, symbols);
                reader->target += step * (size_t)done;
                for (int k = 0; k < count; k++)
                    s[k].out += symbols * done;
                symbols = done < passes ? FEW : usual;
            }
        for (int from = 0; from < count; from += 4) /* what the above leaves, or the streams of one block */
            for (long passes; (passes = passes_of(w + from, s + from, 4, FEW));) {
                read_four(w + from, s + from, passes);
                for (int k = from; k < from + 4; k++)
                    s[k].out += FEW * passes;
            }
        for (int k = 0; k < count; k++)
            s[k].left = (long)(w[k].ip - s[k].start) * 8 + 64 - __builtin_ctzll(w[k].bits);
    }
    int good = 1;
    for (int k = 0; k < count; k++)
        good &= read_rest(&s[k]);
    return good;
}

/* Read the content of a compressed block without sequences, or put it on the waiting list. Returns whether `in` is
 * exactly that; `*made` is how many bytes of `out` it decodes to, of at most `room`. */
static int read_literals(const u8 *in, size_t size, u8 *out, size_t room, size_t *made, Reader *reader)
{
    if (size < 2)
        return 0;
    int kind = in[0] & 3, format = in[0] >> 2 & 3;
    size_t head, regenerated, stored = 0;
    if (kind < 2) { /* raw, or one byte again and again */
        head = format == 1 ? 2 : format == 3 ? 3 : 1;
        if (size < head)
            return 0;
        regenerated = head == 1 ? in[0] >> 3 : head == 2 ? (size_t)(rd16(in) >> 4)
                                             : (size_t)(in[0] | in[1] << 8 | in[2] << 16) >> 4;
        stored = kind ? 1 : regenerated;
    } else {
        head = format < 2 ? 3 : (size_t)format + 2;
        if (size < head)
            return 0;
        int wide = format < 2 ? 10 : format == 2 ? 14 : 18;
        u64 word = 0;
        for (size_t k = 0; k < head; k++)
            word |= (u64)in[k] << (8 * k);
        regenerated = word >> 4 & ((1u << wide) - 1);
        stored = word >> (4 + wide) & ((1u << wide) - 1);
    }
    /* after the literals comes the number of sequences: none */
    if (regenerated > room || regenerated > BLOCK || head + stored + 1 != size || in[size - 1] != 0)
        return 0;
    in += head;
    *made = regenerated;
    int paired = kind >= 2 && regenerated >= PART / 4;
    if (!paired && !read_waiting(reader))
        return 0;
    if (kind == 0) {
        memcpy(out, in, regenerated);
        return 1;
    }
    if (kind == 1) {
        memset(out, in[0], regenerated);
        return 1;
    }
    if (kind == 2) {
        reader->newest ^= 1; /* streams that wait need the one before */
        size_t used = read_tree(in, stored, &reader->lookups[reader->newest]);
        if (!used)
            return 0;
        in += used;
        stored -= used;
    }
    const Lookup *lookup = &reader->lookups[reader->newest];
    if (!lookup->ready || !regenerated)
        return 0;
    if (format == 0) {
        Stream stream;
        return open_stream(&stream, in, stored, out, regenerated, lookup->entry) && read_rest(&stream);
    }
    if (stored < 10 || regenerated < 6) /* the least for four streams */
        return 0;
    size_t sizes[4] = {rd16(in), rd16(in + 2), rd16(in + 4), 0}, part = (regenerated + 3) / 4;
    size_t three = sizes[0] + sizes[1] + sizes[2] + 6;
    if (three >= stored)
        return 0;
    sizes[3] = stored - three;
    Stream *streams = reader->waiting + reader->count;
    in += 6;
    for (int k = 0; k < 4; k++) {
        size_t begin = (size_t)k * part, length = k < 3 ? part : regenerated - 3 * part;
        if (!open_stream(&streams[k], in, sizes[k], out + begin, length, lookup->entry))
            return 0;
        in += sizes[k];
    }
    reader->count += 4;
    return (paired && reader->count == 4) || read_waiting(reader);
}

/* Whether `in` is exactly one frame, without matches, that decodes to exactly `out`. */
static int read_frame(const u8 *in, size_t size, u8 *out, size_t out_size, Reader *reader)
{
    if (size < 9 || rd32(in) != 0xFD2FB528u)
        return 0;
    u8 descriptor = in[4];
    /* one segment, no checksum, no dictionary, as put_frame writes it; the reference knows the others */
    if ((descriptor & 0x3F) != 0x20)
        return 0;
    size_t at = 5, declared;
    switch (descriptor >> 6) {
    case 0: declared = in[at]; at += 1; break;
    case 1: declared = (size_t)rd16(in + at) + 256; at += 2; break;
    case 2: declared = rd32(in + at); at += 4; break;
    default: return 0;
    }
    if (declared != out_size)
        return 0;
    reader->newest = reader->lookups[0].ready = reader->count = 0;
    size_t done = 0, most = declared < BLOCK ? declared : BLOCK;
    for (;;) {
        if (size - at < 3)
            return 0;
        u32 word = in[at] | (u32)in[at + 1] << 8 | (u32)in[at + 2] << 16;
        u32 last = word & 1, kind = word >> 1 & 3;
        size_t length = word >> 3;
        at += 3;
        if (length > most || (kind != 2 && !read_waiting(reader)))
            return 0;
        if (kind == 0) {
            if (length > size - at || length > out_size - done)
                return 0;
            memcpy(out + done, in + at, length);
            at += length, done += length;
        } else if (kind == 1) {
            if (size - at < 1 || length > out_size - done)
                return 0;
            memset(out + done, in[at], length);
            at += 1, done += length;
        } else if (kind == 2) {
            size_t made;
            if (length > size - at || !read_literals(in + at, length, out + done, out_size - done, &made, reader))
                return 0;
            at += length, done += made;
        } else
            return 0;
        if (last)
            return at == size && done == out_size && read_waiting(reader);
    }
}

/* -- planes: elements to planes of their bytes, and back --------------------------------------------------------- */

enum { CHUNK = 2048 /* elements that are handled at a time, so that they stay in the first-level cache */ };

/* Elements of 2, 4 or 8 bytes. What is done with them has a function for each width, by one macro. */
typedef union {
    u16 by2[CHUNK];
    u32 by4[CHUNK];
    u64 by8[CHUNK];
} Elements;

#define OF_WIDTH(NAME) (width == 2 ? NAME##16 : width == 4 ? NAME##32 : NAME##64)

/* Turn each element of `x` left by a bit, into `to`. */
#define TURN(TYPE, READ, to) \
    for (size_t i = 0; i < n; i++) { \
        TYPE v = READ(x + sizeof v * i); \
        to[i] = (TYPE)(v << 1 | v >> (8 * sizeof v - 1)); \
    }
HOT static void turn16(const u8 *RESTRICT x, size_t n, Elements *RESTRICT y) { TURN(u16, rd16, y->by2) }
HOT static void turn32(const u8 *RESTRICT x, size_t n, Elements *RESTRICT y) { TURN(u32, rd32, y->by4) }
HOT static void turn64(const u8 *RESTRICT x, size_t n, Elements *RESTRICT y) { TURN(u64, rd64, y->by8) }

/* Write `lane` bytes of each element, from bit `shift` of it on, to `out`. */
#define CUT(from) \
    switch (lane) { \
    case 1: for (size_t i = 0; i < n; i++) out[i] = (u8)(from[i] >> shift); break; \
    case 2: for (size_t i = 0; i < n; i++) wr16(out + 2 * i, (u16)(from[i] >> shift)); break; \
    default: for (size_t i = 0; i < n; i++) wr32(out + 4 * i, (u32)(from[i] >> shift)); break; \
    }
HOT static void cut16(const Elements *RESTRICT y, size_t n, int shift, int lane, u8 *RESTRICT out) { CUT(y->by2) }
HOT static void cut32(const Elements *RESTRICT y, size_t n, int shift, int lane, u8 *RESTRICT out) { CUT(y->by4) }
HOT static void cut64(const Elements *RESTRICT y, size_t n, int shift, int lane, u8 *RESTRICT out) { CUT(y->by8) }

/* The common case, bf16 and fp16 with two planes of single bytes, in one pass. */
HOT static void split16(const u8 *RESTRICT x, size_t n, u8 *RESTRICT low, u8 *RESTRICT high)
{
    for (size_t i = 0; i < n; i++) {
        u16 v = rd16(x + 2 * i);
        low[i] = (u8)(v << 1 | v >> 15);
        high[i] = (u8)(v >> 7);
    }
}

/* The inverse of split16. */
HOT static void merge16(const u8 *RESTRICT low, const u8 *RESTRICT high, size_t n, u8 *RESTRICT out)
{
    for (size_t i = 0; i < n; i++) {
        u16 y = (u16)(low[i] | high[i] << 8);
        wr16(out + 2 * i, (u16)(y >> 1 | y << 15));
    }
}

/* -- sixteen neighbouring values, two to a byte ------------------------------------------------------------------- */

enum {
    GROUP_LOG = 6,
    GROUP = 1 << GROUP_LOG,
    WINDOW = 16,
    MAX_PERIOD = 1 << 16,
    SAMPLE_ROWS = 32,
    COLUMN_ROWS = 64,
    ANY_ROWS = 4096,
    FAR = 8,
};

/* Both may be the same. */
HOT static void subtract(const u8 *in, size_t n, u8 base, u8 *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (u8)(in[i] - base);
}

HOT static void pair(const u8 *RESTRICT in, size_t pairs, u8 *RESTRICT out)
{
    for (size_t j = 0; j < pairs; j++) {
        u16 v = rd16(in + 2 * j);
        out[j] = (u8)((v & 15) | (v >> 4 & 0xF0));
    }
}

HOT static u64 any_outside(const u8 *RESTRICT in, size_t words)
{
    u64 all = 0;
    for (size_t k = 0; k < words; k++)
        all |= rd64(in + 8 * k);
    return all & 0xF0F0F0F0F0F0F0F0ull;
}

/* A packed plane in the making. */
typedef struct {
    u8 *pairs, *places, *values;
    u8 base;
    size_t n, found, most; /* exceptions: how many there are, and how many there may be */
} Packer;

/* `work` has (n + 1) / 2 bytes, and 5 more for each 64 of the n elements; that is at most n. */
static Packer start_packing(size_t n, u8 base, u8 *work)
{
    u8 *places = work + (n + 1) / 2;
    Packer packer = {work, places, places + 4 * (n / 64), base, n, 0, n / 64};
    return packer;
}

/* Pack the next elements: `count` of them, from number `start` on. All but the last ones come by CHUNK. Returns 0 if
 * there are too many exceptions. */
static int pack(Packer *packer, const u8 *in, size_t start, size_t count)
{
    u8 part[CHUNK + 8];
    subtract(in, count, packer->base, part);
    memset(part + count, 0, 8);
    for (size_t group = 0; group < count; group += 256) {
        size_t words = ((count - group < 256 ? count - group : 256) + 7) / 8;
        if (!any_outside(part + group, words))
            continue;
        for (size_t k = 0; k < words; k++) {
            u64 flags = rd64(part + group + 8 * k) & 0xF0F0F0F0F0F0F0F0ull;
            while (flags) {
                int byte = __builtin_ctzll(flags) >> 3;
                size_t place = group + 8 * k + (size_t)byte;
                if (packer->found == packer->most)
                    return 0;
                wr32(packer->places + 4 * packer->found, (u32)(start + place));
                packer->values[packer->found++] = (u8)(part[place] + packer->base);
                flags &= ~(0xFFull << (8 * byte));
            }
        }
    }
    pair(part, (count + 1) / 2, packer->pairs + start / 2);
    return 1;
}

#if PATHS
#define V3_INLINE AT_V3 static inline __attribute__((always_inline))
V3_INLINE Bytes32 load(const u8 *p) { Bytes32 v; memcpy(&v, p, 32); return v; }
V3_INLINE void store(u8 *p, Bytes32 v) { memcpy(p, &v, 32); }
V3_INLINE Words16 left(Words16 v) { return (v + v) | v >> 15; }
V3_INLINE Ints8 left32(Ints8 v) { return (v + v) | v >> 31; }
/* Words to bytes and integers to words, none of which is too large. Like most instructions of AVX2, this works within
 * halves of 16 bytes, so that afterwards quarters or eighths have to be put in order. */
V3_INLINE Bytes32 narrow(Words16 a, Words16 b)
{
    return (Bytes32)__builtin_ia32_packuswb256((Shorts16)a, (Shorts16)b);
}
V3_INLINE Words16 narrow32(Ints8 a, Ints8 b) { return (Words16)__builtin_ia32_packusdw256((SInts8)a, (SInts8)b); }
V3_INLINE Bytes32 quarters(Bytes32 v) { return (Bytes32)__builtin_ia32_permdi256((Longs4)v, 0xD8); }
V3_INLINE Bytes32 eighths(Bytes32 v, SInts8 order) { return (Bytes32)__builtin_ia32_permvarsi256((SInts8)v, order); }

/* Store or pack 32 bytes of a plane, from number `place` on. Returns 0 if there are too many exceptions. */
V3_INLINE int put_bytes(Bytes32 v, size_t place, u8 *plane, u8 *pairs, Bytes32 base, Packer *packer)
{
    if (!packer) {
        store(plane, v);
        return 1;
    }
    Bytes32 apart = v - base, outside = apart & 0xF0;
    if (!__builtin_ia32_ptestz256((Longs4)outside, (Longs4)outside)) {
        u32 flags = ~(u32)__builtin_ia32_pmovmskb256((Chars32)(outside == 0));
        for (; flags; flags &= flags - 1) {
            int at = __builtin_ctz(flags);
            if (packer->found == packer->most)
                return 0;
            wr32(packer->places + 4 * packer->found, (u32)place + (u32)at);
            packer->values[packer->found++] = v[at];
        }
    }
    const Words16 by = (Words16){0} + 0x1001; /* the second of a pair 16 times */
    Words16 joined = (Words16)__builtin_ia32_pmaddubsw256((Chars32)(apart & 15), (Chars32)by);
    Bytes32 packed = quarters(narrow(joined, joined));
    memcpy(pairs, &packed, 16);
    return 1;
}

/* Split n elements of two bytes, from number `start` on, to two planes. The high one is packed if there is a packer. n
 * is a multiple of 32. */
AT_V3 static int split_two(const u8 *x, size_t start, size_t n, u8 *low, u8 *high, Packer *packer)
{
    u8 *pairs = packer ? packer->pairs + start / 2 : high;
    const Bytes32 base = (Bytes32){0} + (u8)(packer ? packer->base : 0);
    for (size_t i = 0; i < n; i += 32) {
        Words16 a = left((Words16)load(x + 2 * i)), b = left((Words16)load(x + 2 * i + 32));
        store(low + i, quarters(narrow(a & 255, b & 255)));
        if (!put_bytes(quarters(narrow(a >> 8, b >> 8)), start + i, high + i, pairs + i / 2, base, packer))
            return 0;
    }
    return 1;
}

/* The same for elements of four bytes, and planes of the two low bytes, the next one, and the high one. */
AT_V3 static int split_four(const u8 *x, size_t start, size_t n, u8 *low, u8 *middle, u8 *high, Packer *packer)
{
    u8 *pairs = packer ? packer->pairs + start / 2 : high;
    const Bytes32 base = (Bytes32){0} + (u8)(packer ? packer->base : 0);
    const SInts8 order = {0, 4, 1, 5, 2, 6, 3, 7};
    for (size_t i = 0; i < n; i += 32) {
        Ints8 a = left32((Ints8)load(x + 4 * i)), b = left32((Ints8)load(x + 4 * i + 32));
        Ints8 c = left32((Ints8)load(x + 4 * i + 64)), d = left32((Ints8)load(x + 4 * i + 96));
        store(low + 2 * i, quarters((Bytes32)narrow32(a & 0xFFFF, b & 0xFFFF)));
        store(low + 2 * i + 32, quarters((Bytes32)narrow32(c & 0xFFFF, d & 0xFFFF)));
        Words16 first = narrow32(a >> 16, b >> 16), second = narrow32(c >> 16, d >> 16);
        store(middle + i, eighths(narrow(first & 255, second & 255), order));
        Bytes32 last = eighths(narrow(first >> 8, second >> 8), order);
        if (!put_bytes(last, start + i, high + i, pairs + i / 2, base, packer))
            return 0;
    }
    return 1;
}
#endif

/* Write the packed plane; returns its size. */
static size_t finish_packing(const Packer *packer, u8 *out)
{
    size_t found = packer->found, head = 8 + 5 * found;
    wr32(out, packer->base);
    wr32(out + 4, (u32)found);
    memcpy(out + 8, packer->places, 4 * found);
    memcpy(out + 8 + 4 * found, packer->values, found);
    return head + put_frame(packer->pairs, (packer->n + 1) / 2, out + head);
}

/* Write a packed plane of the n bytes in `in`. Returns its size; 0 if there are too many exceptions. `work` has n
 * bytes. */
static size_t put_packed(const u8 *in, size_t n, u8 base, u8 *out, u8 *work)
{
    Packer packer = start_packing(n, base, work);
    for (size_t start = 0; start < n; start += CHUNK)
        if (!pack(&packer, in + start, start, n - start < CHUNK ? n - start : CHUNK))
            return 0;
    return finish_packing(&packer, out);
}

HOT static void unpair(const u8 *RESTRICT in, size_t pairs, u8 base, u8 *RESTRICT out)
{
    for (size_t j = 0; j < pairs; j++) {
        u8 first = (u8)((in[j] & 15) + base), second = (u8)((in[j] >> 4) + base);
        wr16(out + 2 * j, (u16)(first | second << 8)); /* in one, or loops become slow shuffles of bytes */
    }
}

/* A packed plane whose frame is decoded, but whose pairs are yet to be taken apart; or a levelled one, then with levels
 * of groups and of `period` columns; or a fixed one. */
typedef struct {
    const u8 *pairs, *places, *values;
    u8 base;
    size_t n, listed, used; /* how many exceptions there are, and how many have found their places */
    const u8 *levels, *columns;
    size_t period;
    int bits;    /* of a fixed plane's codes, which stand in the place of pairs, as gaps do in that of places */
    size_t next; /* the element behind the last exception that has found its place */
} Packed;

/* `work` gets the pairs, (n + 1) / 2 bytes. */
static int open_packed(const u8 *in, size_t size, size_t n, u8 *work, Reader *reader, Packed *packed)
{
    if (size < 8 || in[1] | in[2] | in[3])
        return 0;
    size_t listed = rd32(in + 4);
    if (listed > (size - 8) / 5)
        return 0;
    const u8 *places = in + 8, *values = places + 4 * listed, *frame = values + listed;
    Packed opened = {.pairs = work, .places = places, .values = values, .base = in[0], .n = n, .listed = listed};
    *packed = opened;
    return read_frame(frame, (size_t)(in + size - frame), work, (n + 1) / 2, reader);
}

/* Set the high bytes of the exceptions among `count` elements of `width` bytes, from number `start` on. Elements of
 * several bytes are already turned back. */
static int set_exceptions(Packed *packed, size_t start, size_t count, u8 *out, int width)
{
    u64 next = start; /* the least that is allowed, since places rise */
    for (; packed->used < packed->listed; packed->used++) {
        u64 place = rd32(packed->places + 4 * packed->used);
        if (place < next)
            return 0;
        if (place >= start + count)
            break;
        u8 value = packed->values[packed->used], *at = out + (place - start) * (size_t)width;
        if (width == 1)
            *at = value;
        else if (width == 2)
            wr16(at, (u16)((rd16(at) & 0x807F) | value << 7));
        else
            wr32(at, (rd32(at) & 0x807FFFFF) | (u32)value << 23);
        next = place + 1;
    }
    return start + count < packed->n || packed->used == packed->listed;
}

HOT static void add_each(const u8 *RESTRICT levels, size_t n, u8 *RESTRICT out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (u8)(out[i] + levels[i]);
}

/* Add the levels of `count` elements, from number `start` on, which is a multiple of GROUP. */
static void add_levels(const Packed *packed, size_t start, size_t count, u8 *out)
{
    u8 same[GROUP];
    for (size_t i = 0; i < count; i += GROUP) {
        memset(same, packed->levels[(start + i) / GROUP] + (packed->period == 1 ? packed->columns[0] : 0), sizeof same);
        add_each(same, count - i < GROUP ? count - i : GROUP, out + i);
    }
    for (size_t i = 0, some; packed->period > 1 && i < count; i += some) {
        size_t column = (start + i) % packed->period;
        some = count - i < packed->period - column ? count - i : packed->period - column;
        add_each(packed->columns + column, some, out + i);
    }
}

/* Take `count` elements apart, from number `start` on, which is a multiple of GROUP. To be called for one chunk after
 * the other, since it takes exceptions in their order. */
static int unpack(Packed *packed, size_t start, size_t count, u8 *out)
{
    unpair(packed->pairs + start / 2, count / 2, packed->base, out);
    if (count % 2) { /* the plane's last element */
        u8 last = packed->pairs[(start + count) / 2];
        if (last > 15)
            return 0;
        out[count - 1] = (u8)(last + packed->base);
    }
    if (!set_exceptions(packed, start, count, out, 1))
        return 0;
    if (packed->levels)
        add_levels(packed, start, count, out);
    return 1;
}

#if PATHS
V3_INLINE Words16 right(Words16 v) { return v >> 1 | v << 15; }
V3_INLINE Ints8 right32(Ints8 v) { return v >> 1 | v << 31; }
V3_INLINE Words16 low_words(Bytes32 a, Bytes32 b)
{
    return (Words16)__builtin_ia32_punpcklbw256((Chars32)a, (Chars32)b);
}
V3_INLINE Words16 high_words(Bytes32 a, Bytes32 b)
{
    return (Words16)__builtin_ia32_punpckhbw256((Chars32)a, (Chars32)b);
}
V3_INLINE Ints8 low_ints(Bytes32 a, Words16 b) { return (Ints8)__builtin_ia32_punpcklwd256((Shorts16)a, (Shorts16)b); }
V3_INLINE Ints8 high_ints(Bytes32 a, Words16 b) { return (Ints8)__builtin_ia32_punpckhwd256((Shorts16)a, (Shorts16)b); }

/* 32 bytes of a plane, or of one that is packed as `pairs`, without its exceptions. */
V3_INLINE Bytes32 get_bytes(const u8 *plane, const u8 *pairs, Bytes32 base, size_t i)
{
    if (!pairs)
        return load(plane + i);
    Bytes16 some;
    memcpy(&some, pairs + i / 2, 16);
    Words16 apart = (Words16)__builtin_ia32_pmovzxbw256((Chars16)some);
    return (Bytes32)((apart | apart << 4) & 0x0F0F) + base;
}

/* The inverse of split_two. */
AT_V3 static int merge_two(const u8 *low, const u8 *high, Packed *packed, size_t start, size_t n, u8 *x)
{
    const u8 *pairs = packed ? packed->pairs + start / 2 : NULL;
    const Bytes32 base = (Bytes32){0} + (u8)(packed ? packed->base : 0);
    for (size_t i = 0; i < n; i += 32) {
        Bytes32 a = quarters(load(low + i)), b = quarters(get_bytes(high, pairs, base, i));
        store(x + 2 * i, (Bytes32)right(low_words(a, b)));
        store(x + 2 * i + 32, (Bytes32)right(high_words(a, b)));
    }
    return !packed || set_exceptions(packed, start, n, x, 2);
}

/* The inverse of split_four. */
AT_V3 static int merge_four(const u8 *low, const u8 *middle, const u8 *high, Packed *packed, size_t start, size_t n,
                            u8 *x)
{
    const u8 *pairs = packed ? packed->pairs + start / 2 : NULL;
    const Bytes32 base = (Bytes32){0} + (u8)(packed ? packed->base : 0);
    const SInts8 order = {0, 2, 4, 6, 1, 3, 5, 7};
    for (size_t i = 0; i < n; i += 32) {
        Bytes32 a = quarters(load(low + 2 * i)), b = quarters(load(low + 2 * i + 32));
        Bytes32 c = eighths(load(middle + i), order), d = eighths(get_bytes(high, pairs, base, i), order);
        Words16 first = low_words(c, d), second = high_words(c, d);
        store(x + 4 * i, (Bytes32)right32(low_ints(a, first)));
        store(x + 4 * i + 32, (Bytes32)right32(high_ints(a, first)));
        store(x + 4 * i + 64, (Bytes32)right32(low_ints(b, second)));
        store(x + 4 * i + 96, (Bytes32)right32(high_ints(b, second)));
    }
    return !packed || set_exceptions(packed, start, n, x, 4);
}
#endif

/* `work` gets the levels and the pairs. The format allows more columns than elements, but `encode` never writes them,
 * and `work` has no room for them. */
static int open_levelled(const u8 *in, size_t size, size_t n, u8 *work, Reader *reader, Packed *packed)
{
    if (size < 12 || rd32(in) != GROUP_LOG)
        return 0;
    size_t period = rd32(in + 4), stored = rd32(in + 8), groups = (n + GROUP - 1) / GROUP;
    if (!period || period > MAX_PERIOD || period > n || stored > size - 12)
        return 0;
    const u8 *body = in + 12 + stored;
    if (!read_frame(in + 12, stored, work, groups + period, reader) ||
        !open_packed(body, size - 12 - stored, n, work + groups + period, reader, packed))
        return 0;
    packed->levels = work, packed->columns = work + groups, packed->period = period;
    return 1;
}

static int read_packed(const u8 *in, size_t size, u8 *out, size_t n, u8 *work, Reader *reader)
{
    Packed packed;
    return open_packed(in, size, n, work, reader, &packed) && unpack(&packed, 0, n, out);
}

/* Find the `span` neighbouring values that hold most of what was counted; returns how much that is. Of several such
 * windows, take the one with room for one more value above the greatest: it is there that the sample may have missed
 * one, since exponents become ever rarer downwards, but not upwards. */
static u32 best_window(const u32 *counts, int span, u8 *base)
{
    u32 inside = 0, best = 0;
    int at = 0, last = 0;
    for (int s = 0; s < 256; s++) {
        inside += counts[s] - (s >= span ? counts[s - span] : 0);
        if (counts[s])
            last = s;
        if (s >= span - 1 && inside > best)
            best = inside, at = s - span + 1;
    }
    int roomy = last + 2 - span < 0 ? 0 : last + 2 > 256 ? 256 - span : last + 2 - span;
    inside = 0;
    for (int s = roomy; s < roomy + span; s++)
        inside += counts[s];
    *base = (u8)(inside == best ? roomy : at);
    return best;
}

/* -- levels: scales that differ from place to place --------------------------------------------------------------- */

static const double LEVEL_BITS = 3.0; /* about what a column's level takes */

/* Shannon's entropy, in bits, with the Miller-Madow correction for small samples. */
static double entropy(const u32 *counts, u32 total)
{
    double sum = 0;
    int kinds = 0;
    for (int s = 0; s < 256; s++)
        if (counts[s]) {
            sum += counts[s] * log2((double)counts[s]);
            kinds++;
        }
    return kinds < 2 ? 0.0 : log2((double)total) - sum / total + (kinds - 1) * (0.5 / 0.6931471805599453 / total);
}

/* The mean of a group, rounded, but at most `farthest` below the greatest. A zero, whose exponent is far below the
 * others, counts as little else. */
static inline __attribute__((always_inline)) u8 middle_of(const u8 *in, size_t n, u8 farthest)
{
    int8_t most = -128;
    u16 sum = 0;
    for (size_t i = 0; i < n; i++)
        most = (int8_t)in[i] > most ? (int8_t)in[i] : most;
    for (size_t i = 0; i < n; i++) {
        u8 below = (u8)((u8)most - in[i]);
        sum = (u16)(sum + (below < 16 ? below : 16));
    }
    u32 mean = (2 * sum + (u32)n) / (2 * (u32)n);
    return (u8)(most - (int)(mean < farthest ? mean : farthest));
}

/* Find the level of each group, and take it off. */
HOT static void level_groups(u8 *RESTRICT values, size_t n, u8 farthest, u8 *RESTRICT levels)
{
    size_t start = 0;
    for (; start + GROUP <= n; start += GROUP) {
        u8 level = (u8)(middle_of(values + start, GROUP, farthest) - 128);
        for (size_t i = start; i < start + GROUP; i++)
            values[i] = (u8)(values[i] - level);
        *levels++ = level;
    }
    if (start < n)
        *levels = (u8)(middle_of(values + start, n - start, farthest) - 128);
    for (; start < n; start++)
        values[start] = (u8)(values[start] - *levels);
}

HOT static void subtract_each(const u8 *RESTRICT in, const u8 *RESTRICT levels, size_t n, u8 *RESTRICT out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (u8)(in[i] - levels[i]);
}

/* Which levels a plane has: `period` is the number of columns, 1 if they have none, and 0 for no levels at all. */
typedef struct {
    size_t period;
    int by_groups;
    u8 farthest, middle, base; /* `base` is for what is left, where that lies around 128 */
} Levels;

/* What part of a variance is that of the means of some values, `count` each. */
static double share_of(const int *sums, size_t n, double count, double mean, double variance)
{
    double between = 0;
    for (size_t i = 0; i < n; i++)
        between += (sums[i] / count - mean) * (sums[i] / count - mean);
    return (between / (double)n - variance / count) / variance;
}

/* How many bits each value of a sample takes, once the levels of columns, and perhaps of groups, are taken off. What is
 * left lies around 128; `base` is where it is packed best. */
static double levelled_bits(const u8 *sample, size_t span, const u8 *columns, int by_groups, u8 *base)
{
    u32 counts[256] = {0}, levels[256] = {0}, groups = 0;
    for (size_t at = 0; at < span * SAMPLE_ROWS; at += GROUP, groups++) {
        u8 part[GROUP], level = 128;
        subtract_each(sample + at, columns + at % span, GROUP, part);
        if (by_groups)
            level_groups(part, GROUP, FAR, &level);
        else
            subtract(part, GROUP, level, part);
        levels[level]++;
        for (size_t i = 0; i < GROUP; i++)
            counts[part[i]]++;
    }
    best_window(counts, WINDOW, base);
    return entropy(counts, groups * GROUP) + entropy(levels, groups) / GROUP;
}

/* Add a row of a sample to the sums of columns and groups. Returns the sum of squares. */
HOT static int add_row(const u8 *RESTRICT row, size_t n, u8 middle, int *RESTRICT columns, int *RESTRICT groups)
{
    int squares = 0;
    for (size_t at = 0; at < n; at += GROUP) {
        int sum = 0;
        for (size_t i = at; i < at + GROUP; i++) {
            int v = row[i] - middle;
            v = v < -16 ? -16 : v > 16 ? 16 : v;
            columns[i] += v;
            sum += v;
            squares += v * v;
        }
        groups[at / GROUP] = sum;
    }
    return squares;
}

/* Which levels are worth their place, by a sample of the highest bytes of the n elements, most of which are around
 * `middle`. Mostly none are, which is seen by how much of the variance is that of the means of groups and columns. */
static Levels choose_levels(const u8 *data, size_t n, size_t row, int width, u8 middle)
{
    Levels best = {.farthest = FAR, .middle = middle};
    u8 sample[SAMPLE_ROWS * 2 * GROUP], none[2 * GROUP], means[2 * GROUP], base;
    int groups[SAMPLE_ROWS * 2] = {0}, columns[2 * GROUP] = {0}, sum = 0, squares = 0;
    int by_rows = row >= GROUP && row <= MAX_PERIOD && n >= SAMPLE_ROWS * row;
    if (!by_rows && n < SAMPLE_ROWS * GROUP)
        return best;
    size_t stride = by_rows ? row : GROUP, span = by_rows && row >= 2 * GROUP ? 2 * GROUP : GROUP;
    size_t step = n / stride / SAMPLE_ROWS * stride, per_row = span / GROUP, total = span * SAMPLE_ROWS;
    for (size_t k = 0; k < SAMPLE_ROWS; k++) {
        Elements y;
        OF_WIDTH(turn)(data + k * step * (size_t)width, span, &y);
        OF_WIDTH(cut)(&y, span, 8 * (width - 1), 1, sample + k * span);
        squares += add_row(sample + k * span, span, middle, columns, groups + k * per_row);
    }
    for (size_t i = 0; i < span; i++) {
        sum += columns[i];
        none[i] = middle;
        means[i] = (u8)(middle + (columns[i] + 33 * SAMPLE_ROWS / 2) / SAMPLE_ROWS - 16);
    }
    double mean = (double)sum / (double)total, variance = (double)squares / (double)total - mean * mean;
    double worth_a_look = width == 2 ? 0.1 : 0.04; /* a share of p saves log2(1 - p) / -2 bits */
    int of_groups = share_of(groups, total / GROUP, GROUP, mean, variance) > worth_a_look;
    int of_columns = by_rows && share_of(columns, span, SAMPLE_ROWS, mean, variance) > worth_a_look;
    double least = variance > 0 && (of_groups || of_columns) ? levelled_bits(sample, span, none, 0, &base) : 0;
    least -= width == 2 ? 0.15 : 0.05; /* less is not worth the time */
    for (int mode = 1; mode < 4 && least > 0; mode++) {
        if ((mode & 1 && !of_groups) || (mode & 2 && !of_columns))
            continue;
        double bits = levelled_bits(sample, span, mode & 2 ? means : none, mode & 1, &base);
        bits += mode & 2 ? LEVEL_BITS * (double)row / (double)n : 0;
        if (bits >= least)
            continue;
        least = bits;
        best.period = mode & 2 ? row : 1, best.by_groups = mode & 1, best.base = base;
    }
    return best;
}

/* Levels of the columns: the mean of each, from some of the rows. `sums` has an entry for each column. */
static void column_levels(const u8 *values, size_t n, size_t period, u8 *levels, u32 *sums)
{
    size_t rows = n / period, most = period > 1 ? COLUMN_ROWS : ANY_ROWS;
    size_t step = rows / most ? rows / most : 1, taken = 0;
    memset(sums, 0, 4 * period);
    for (size_t r = 0; r < rows; r += step, taken++)
        for (size_t c = 0; c < period; c++)
            sums[c] += values[r * period + c];
    for (size_t c = 0; c < period; c++)
        levels[c] = (u8)((sums[c] + taken / 2) / taken);
}

/* Write a levelled plane. Returns its size; 0 if what is left cannot be packed. `work` has 2 * n bytes and 4 * period
 * more. */
static size_t put_levelled(const u8 *in, size_t n, Levels to, u8 *out, u8 *work)
{
    size_t groups = (n + GROUP - 1) / GROUP;
    u8 *levels = work, *columns = levels + groups, *more = columns + to.period;
    more += -(uintptr_t)more & 3;
    memset(levels, 0, groups);
    columns[0] = to.middle;
    if (to.period > 1)
        column_levels(in, n, to.period, columns, (u32 *)(void *)more);
    Packer packer = start_packing(n, (u8)(to.base - (to.by_groups ? 0 : 128)), more);
    for (size_t start = 0; start < n; start += CHUNK) {
        u8 part[CHUNK];
        size_t count = n - start < CHUNK ? n - start : CHUNK;
        if (to.period == 1)
            subtract(in + start, count, to.middle, part);
        for (size_t i = 0, some; to.period > 1 && i < count; i += some) {
            size_t column = (start + i) % to.period;
            some = count - i < to.period - column ? count - i : to.period - column;
            subtract_each(in + start + i, columns + column, some, part + i);
        }
        if (to.by_groups)
            level_groups(part, count, to.farthest, levels + start / GROUP);
        if (!pack(&packer, part, start, count))
            return 0;
    }
    size_t size = put_frame(levels, groups + to.period, out + 12);
    wr32(out, GROUP_LOG);
    wr32(out + 4, (u32)to.period);
    wr32(out + 8, (u32)size);
    return 12 + size + finish_packing(&packer, out + 12 + size);
}

/* -- fixed planes: neighbouring values, all in as many bits, and exceptions ----------------------------------------- */

enum {
    LANES = 64, /* bytes that are shifted together */
    FIXED_GROUP = 8 * LANES,
    MOST_BITS = 7,   /* of a code */
    MOST_MADE = 6,   /* the same, of those that `encode` makes */
    MANY_VALUES = 4096, /* that a plane needs to be worth it */
};

#define EACH_BYTE(v) ((v) * 0x0101010101010101ull)
typedef u64 Lanes __attribute__((vector_size(LANES))); /* the compiler makes of it what the machine has */

/* Elements of a group lie above each other: each byte of LANES has parts of the codes of 8 elements. */
static inline __attribute__((always_inline)) void spread_out(const u8 *RESTRICT in, size_t groups, const int bits,
                                                             u8 *RESTRICT out)
{
    const u64 mask = EACH_BYTE((1ull << bits) - 1);
    for (; groups; groups--, in += LANES * bits, out += FIXED_GROUP) {
        Lanes rows[MOST_BITS + 1] = {{0}};
        memcpy(rows, in, LANES * (size_t)bits);
#pragma GCC unroll 8
        for (int a = 0; a < 8; a++) {
            const int row = a * bits / 8, shift = a * bits % 8;
            const u64 first = mask & EACH_BYTE(0xFFull >> shift); /* bits must not move to another byte */
            Lanes codes = rows[row] >> shift & first;
            if (first != mask)
                codes |= rows[row + 1] << (8 - shift) & (mask & ~first);
            memcpy(out + LANES * a, &codes, LANES);
        }
    }
}

/* The inverse; higher bits than so many are left out. */
static inline __attribute__((always_inline)) void lay_together(const u8 *RESTRICT in, size_t groups, const int bits,
                                                               u8 *RESTRICT out)
{
    const u64 mask = EACH_BYTE((1ull << bits) - 1);
    for (; groups; groups--, in += FIXED_GROUP, out += LANES * bits) {
        Lanes rows[MOST_BITS + 1] = {{0}};
#pragma GCC unroll 8
        for (int a = 0; a < 8; a++) {
            const int row = a * bits / 8, shift = a * bits % 8;
            const u64 first = mask & EACH_BYTE(0xFFull >> shift);
            Lanes codes;
            memcpy(&codes, in + LANES * a, LANES);
            rows[row] |= (codes & first) << shift;
            if (first != mask)
                rows[row + 1] |= (codes & (mask & ~first)) >> (8 - shift);
        }
        memcpy(out, rows, LANES * (size_t)bits);
    }
}

#define FOR_BITS(DO) \
    switch (bits) { \
    case 1: DO(in, groups, 1, out); break; \
    case 2: DO(in, groups, 2, out); break; \
    case 3: DO(in, groups, 3, out); break; \
    case 4: DO(in, groups, 4, out); break; \
    case 5: DO(in, groups, 5, out); break; \
    case 6: DO(in, groups, 6, out); break; \
    default: DO(in, groups, MOST_BITS, out); \
    }
HOT static void spread(const u8 *in, size_t groups, int bits, u8 *out) { FOR_BITS(spread_out) }
HOT static void lay(const u8 *in, size_t groups, int bits, u8 *out) { FOR_BITS(lay_together) }

/* Write a fixed plane of the n bytes in `in`. Returns its size; 0 if there are too many exceptions. `work` has n bytes,
 * and n is at least MANY_VALUES. */
static size_t put_fixed(const u8 *in, size_t n, u8 base, int bits, u8 *out, u8 *work)
{
    size_t most = n / 16, found = 0, next = 0; /* `next` is the element behind the last one that is listed */
    u8 *gaps = work, *values = work + most, *at = out + 8;
    const u64 outside = EACH_BYTE(256 - (1ull << bits));
    for (size_t start = 0; start < n; start += CHUNK) {
        u8 part[CHUNK];
        size_t count = n - start < CHUNK ? n - start : CHUNK, groups = (count + FIXED_GROUP - 1) / FIXED_GROUP;
        subtract(in + start, count, base, part);
        memset(part + count, 0, groups * FIXED_GROUP - count);
        u8 words[CHUNK / 8];
        int some = 0;
        for (int k = 0; k < (int)groups * LANES; k++) { /* without a branch, which nothing could predict */
            words[some] = (u8)k;
            some += (rd64(part + 8 * k) & outside) != 0;
        }
        for (int k = 0; k < some; k++) {
            size_t i = 8 * (size_t)words[k];
            u64 flags = rd64(part + i) & outside;
            do {
                int byte = __builtin_ctzll(flags) >> 3;
                size_t place = start + i + (size_t)byte;
                for (; place - next > 255 && found < most; next += 256) /* an element that needs not be listed */
                    gaps[found] = 255, values[found++] = in[next + 255];
                if (found == most)
                    return 0;
                gaps[found] = (u8)(place - next), values[found++] = in[place];
                next = place + 1;
                flags &= ~(0xFFull << (8 * byte));
            } while (flags);
        }
        lay(part, groups, bits, at);
        at += groups * LANES * (size_t)bits;
    }
    wr32(out, base | (u32)bits << 8);
    wr32(out + 4, (u32)found);
    memcpy(at, gaps, found);
    memcpy(at + found, values, found);
    return (size_t)(at - out) + 2 * found;
}

static int open_fixed(const u8 *in, size_t size, size_t n, Packed *fixed)
{
    if (size < 8 || in[2] | in[3])
        return 0;
    const u8 base = in[0], bits = in[1];
    size_t listed = rd32(in + 4), codes = (n + FIXED_GROUP - 1) / FIXED_GROUP * LANES * bits;
    if (!bits || bits > MOST_BITS || listed > n || size != 8 + codes + 2 * listed)
        return 0;
    const u8 *gaps = in + 8 + codes;
    Packed opened = {.pairs = in + 8, .places = gaps, .values = gaps + listed, .base = base, .n = n, .listed = listed,
                     .bits = bits};
    *fixed = opened;
    return 1;
}

/* Take `count` elements apart, from number `start` on, which is a multiple of CHUNK, as `unpack` does. `out` has room
 * for CHUNK of them. */
static int unfix(Packed *fixed, size_t start, size_t count, u8 *out)
{
    size_t groups = (count + FIXED_GROUP - 1) / FIXED_GROUP, used = fixed->used, next = fixed->next;
    spread(fixed->pairs + start / 8 * fixed->bits, groups, fixed->bits, out);
    for (size_t i = count; i < groups * FIXED_GROUP; i++)
        if (out[i])
            return 0;
    subtract(out, count, (u8)-fixed->base, out);
    for (; used < fixed->listed; used++) {
        size_t place = next + fixed->places[used];
        if (place >= start + count)
            break;
        out[place - start] = fixed->values[used];
        next = place + 1;
    }
    fixed->used = used, fixed->next = next;
    return start + count < fixed->n || used == fixed->listed;
}

/* -- blocks ------------------------------------------------------------------------------------------------------- */

enum { RAW, ZSTD, PACKED, LEVELLED, FIXED = 5 };
enum { RUNS = 16, RUN = 128, SAMPLE = RUNS * RUN };

typedef struct {
    int coding, lane, low; /* `low`: which byte of an element is its first */
    u8 base;
    int bits; /* of codes, if it is to be fixed, and the least of the values that they stand for */
    u8 least;
    Levels levels;
    u8 *values;  /* what is to be coded or stored; memory for `packer`, if it packs while elements are split */
    size_t size; /* as stored */
    Packer packer;
} Plane;

/* Bytes of a block at most: frames are written as one segment, whose window is all of the content, and the format
 * allows windows of 2^27. */
static const size_t MAX_SIZE = 1 << 27;

static size_t table_size(int planes) { return (5 + 5 * (size_t)planes + 7) / 8 * 8; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t encode_bound(size_t size) { return size + size / 8 + smaller(size, BLOCK) / 2 + 1024; }
static size_t work_size(size_t size) { return 3 * size + 4 * (smaller(size, MAX_PERIOD) + 1024); }

/* Count bytes by their places modulo 8, and by their values. */
static void count_places(const u8 *RESTRICT bytes, size_t size, u32 counts[8][256])
{
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        u64 v = rd64(bytes + i);
        counts[0][(u8)v]++, counts[1][(u8)(v >> 8)]++, counts[2][(u8)(v >> 16)]++, counts[3][(u8)(v >> 24)]++;
        counts[4][(u8)(v >> 32)]++, counts[5][(u8)(v >> 40)]++, counts[6][(u8)(v >> 48)]++, counts[7][v >> 56]++;
    }
    for (; i < size; i++)
        counts[i % 8][bytes[i]]++;
}

#define REPEATED(x) for (size_t i = 4; i < n; i++) found += (x[i] == x[i - 1]) | (x[i] == x[i - 2]) | (x[i] == x[i - 4]);

/* How many of the elements from the fifth on equal the one 1, 2 or 4 before them. */
HOT static u32 count_repeated(const u8 *RESTRICT bytes, const Elements *RESTRICT y, size_t n, int width)
{
    u32 found = 0;
    switch (width) {
    case 1: REPEATED(bytes) break;
    case 2: REPEATED(y->by2) break;
    case 4: REPEATED(y->by4) break;
    default: REPEATED(y->by8) break;
    }
    return found;
}

/* Count how often each byte occurs at each place of an element, in a sample of at most SAMPLE elements, and how many of
 * the `tested` elements equal the one 1, 2 or 4 before them. Returns the size of the sample. */
static u32 take_sample(const u8 *data, size_t n, int width, u32 counts[8][256], u32 *repeated, u32 *tested)
{
    Elements y;
    memset(counts, 0, sizeof(u32) * 256 * 8);
    size_t step = n / RUNS, run = step <= RUN ? smaller(n, SAMPLE) : RUN;
    u32 total = 0;
    *repeated = *tested = 0;
    for (int r = 0; r < RUNS && total < n; r++) {
        size_t at = 0;
        if (step > RUN) { /* at equal distances, rows whose length is a power of two would all be met at one place */
            double jitter = r * 0.6180339887498949;
            at = (size_t)r * step + (size_t)((jitter - (double)(long)jitter) * (double)(step - RUN));
        }
        if (width > 1)
            OF_WIDTH(turn)(data + at * (size_t)width, run, &y);
        const u8 *bytes = width > 1 ? (const u8 *)&y : data + at;
        count_places(bytes, run * (size_t)width, counts);
        size_t some = step <= RUN ? run : smaller(run, 32);
        *tested += some > 4 ? (u32)some - 4 : 0;
        *repeated += count_repeated(bytes, &y, some, width);
        total += (u32)run;
        if (step <= RUN)
            break;
    }
    for (int k = width; k < 8; k++)
        for (int s = 0; s < 256; s++)
            counts[k % width][s] += counts[k][s];
    return total;
}

/* Whether many elements of 4 or 8 bytes stand in other places once more, but for their signs, as in tables of sines. Of
 * matrices, the same columns of all rows are compared. */
static int is_repetitive(const u8 *data, size_t size, int width)
{
    u64 seen[1024] = {0};
    size_t step = (size_t)width, found = 0;
    while (size / step > 1024)
        step *= 2;
    for (size_t at = 0; at + 8 <= size; at += step) {
        u64 v = rd64(data + at) & 0x7FFFFFFF7FFFFFFF, *met = &seen[(v * 0x9E3779B97F4A7C15) >> 54];
        found += v && *met == v;
        *met = v;
    }
    return found > size / step / 8 + 3;
}

/* The mean of what was counted, apart from zeros. */
static u8 middle_of_counts(const u32 *counts)
{
    u32 sum = 0, total = 1;
    for (int s = 1; s < 256; s++)
        sum += counts[s] * (u32)s, total += counts[s];
    return (u8)(sum / total);
}

/* Decide how to store one plane, by the spread of its bytes in the sample: 2 to the power of their collision entropy,
 * which needs no logarithm. The reference has the same bounds in bits. Returns 0 if nearly all bytes are the same, but
 * not all: runs may then matter, and the reference looks for matches. */
static int plan_plane(const u32 *counts, u32 total, int width, Plane *plane)
{
    u64 pairs = 0;
    for (int s = 0; s < 256; s++)
        pairs += (u64)counts[s] * counts[s];
    pairs -= total;
    double spread = pairs ? (double)total * (total - 1) / (double)pairs : 1e9;
    plane->lane = 1;
    plane->coding = ZSTD;
    /* 7.7 bits: noise. A byte that is a whole element is worth a percent less, which only Shannon's entropy shows. */
    if (width > 1 ? spread > 207.94 : entropy(counts, total) > 7.9) {
        plane->coding = RAW;
        return 1;
    }
    if (spread < 1.1892) /* 0.25 bits */
        return spread <= 1.0; /* a constant needs no matches */
    /* elements of one byte have hardly any exceptions, or are cheaper without */
    if (best_window(counts, WINDOW, &plane->base) >= total - total / (width > 1 ? 128 : 1024))
        plane->coding = PACKED;
    return 1;
}

/* How many of `tested` elements would equal one of three others if all were drawn independently, as `counts` are. */
static double by_chance(const u32 *counts, u32 total, u32 tested)
{
    double others = 0;
    for (int s = 0; s < 256; s++) {
        double share = (double)counts[s] / total;
        others += share * (1 - share) * (1 - share) * (1 - share);
    }
    return tested * (1 - others);
}

static int constant(const u8 *values, size_t n) { return !memcmp(values, values + 1, n - 1); }

/* Whether `split` packs a plane; elements of one byte are not split. */
static int packs_early(const Plane *plane)
{
    return plane->coding == PACKED && !plane->levels.period && !plane->bits;
}

/* Decide whether a plane is to be fixed: where that takes hardly more than Huffman codes would. */
static void plan_fixed(const u32 *counts, u32 total, Plane *plane)
{
    double least = entropy(counts, total) + 1;
    for (int bits = 1; bits <= MOST_MADE; bits++) {
        u8 base;
        double outside = 1 - (double)best_window(counts, 1 << bits, &base) / total, cost = bits + 16 * outside;
        if (outside < 1.0 / 24 && cost < least)
            least = cost, plane->bits = bits, plane->least = base;
    }
}

static size_t put_plane(Plane *plane, size_t n, int width, u8 *out, u8 *work)
{
    size_t size = 0;
    if (plane->bits) {
        size = put_fixed(plane->values, n, plane->least, plane->bits, out, work);
        if (size) {
            plane->coding = FIXED;
            return size;
        }
        if (plane->coding == PACKED && (size = put_packed(plane->values, n, plane->base, out, work)))
            return size;
        plane->coding = ZSTD;
    }
    if (plane->levels.period) {
        size = put_levelled(plane->values, n, plane->levels, out, work);
        if (!size) { /* if groups have the end of one row and the beginning of another, greatest values serve better */
            plane->levels.by_groups = 1, plane->levels.farthest = 0, plane->levels.base = 128 - 15;
            size = put_levelled(plane->values, n, plane->levels, out, work);
        }
        if (size) {
            plane->coding = LEVELLED;
            return size;
        }
    }
    if (width > 1 && packs_early(plane))
        return finish_packing(&plane->packer, out);
    if (plane->coding == PACKED) {
        size = put_packed(plane->values, n, plane->base, out, work);
        if (size)
            return size;
    }
    plane->coding = ZSTD;
    return put_frame(plane->values, n, out);
}

#if PATHS
/* Whether split_two or split_four, and their inverses, are for these planes. */
static int is_simple(const Plane *planes, int number, int width)
{
    if (planes[0].coding >= PACKED || !HAS_V3())
        return 0;
    return width == 2 ? number == 2
                      : width == 4 && number == 3 && planes[0].lane == 2 && planes[1].lane == 1 &&
                            planes[1].coding < PACKED;
}
#endif

/* Split elements to planes. A plane that is to be packed at once, and cannot be, becomes an ordinary one; then returns
 * 0, and everything has to be split again. */
static int split(const u8 *data, size_t n, int width, Plane *planes, int number)
{
    for (int p = 0; p < number; p++)
        if (packs_early(&planes[p]))
            planes[p].packer = start_packing(n, planes[p].base, planes[p].values);
    for (size_t start = 0; start < n; start += CHUNK) {
        Elements y;
        u8 part[2][CHUNK], *to[8];
        size_t count = n - start < CHUNK ? n - start : CHUNK;
        int in_one_pass = width == 2 && number == 2;
#if PATHS
        if (count % 32 == 0 && is_simple(planes, number, width)) {
            Plane *last = &planes[number - 1];
            u8 *high = last->values + start;
            Packer *packer = packs_early(last) ? &last->packer : NULL;
            if (width == 2 ? split_two(data + 2 * start, start, count, planes[0].values + start, high, packer)
                           : split_four(data + 4 * start, start, count, planes[0].values + 2 * start,
                                        planes[1].values + start, high, packer))
                continue;
            last->coding = ZSTD;
            return 0;
        }
#endif
        for (int p = 0; p < number; p++)
            to[p] = packs_early(&planes[p]) ? part[p % 2] : planes[p].values + start * (size_t)planes[p].lane;
        if (in_one_pass)
            split16(data + 2 * start, count, to[0], to[1]);
        else
            OF_WIDTH(turn)(data + start * (size_t)width, count, &y);
        for (int p = 0; p < number; p++) {
            if (!in_one_pass)
                OF_WIDTH(cut)(&y, count, 8 * planes[p].low, planes[p].lane, to[p]);
            if (packs_early(&planes[p]) && !pack(&planes[p].packer, to[p], start, count)) {
                planes[p].coding = ZSTD;
                return 0;
            }
        }
    }
    return 1;
}

/* The payload has the table first, then planes of noise, which are split straight into `out`, then the other planes,
 * which are split into `work` and coded one by one. Every plane takes at most its n bytes and a frame's overhead, and
 * coding stops as soon as the payload is longer than the block; only put_literals may write more on its way, by 3/8 of
 * a zstd block. That is why encode_bound suffices. */
static long encode_block(const u8 *data, size_t size, int width, size_t row, int speed, u8 *out, u8 *work)
{
    size_t n = size / (size_t)width, edges = size - n * (size_t)width;
    u32 counts[8][256];
    Plane planes[8];
    int number = 0, coded = 0, noise = 0;
    if (!n)
        return -1;
    u32 repeated, tested, total = take_sample(data, n, width, counts, &repeated, &tested);
    int same = 1, alike[8] = {0}; /* whether the sample has one value alone, and at which places */
    for (int k = 0; k < width; k++) {
        for (int s = 0; s < 256; s++)
            alike[k] |= counts[k][s] == total;
        same &= alike[k];
    }
    /* runs are for the reference, unless the whole block is one; elements of one byte often repeat by chance */
    if (!same && repeated > tested / 16 + 1 + (width == 1 ? by_chance(counts[0], total, tested) : 0))
        return -1;
    if (!same && width >= 4 && is_repetitive(data, n * (size_t)width, width))
        return -1;
    for (int k = 0; k <= width; k++) { /* one pass more than there are bytes, for noise at the end */
        Plane plane = {0};
        if (k < width && !plan_plane(counts[k], total, width, &plane))
            return -1;
        if (k < width && plane.coding == RAW) {
            noise++;
            continue;
        }
        for (int low = k - noise; noise;) { /* neighbouring bytes of noise, in as few planes as possible */
            int lane = noise >= 4 ? 4 : noise >= 2 ? 2 : 1;
            Plane raw = {.coding = RAW, .lane = lane, .low = low, .size = n * (size_t)lane};
            planes[number++] = raw;
            low += lane;
            noise -= lane;
        }
        if (k == width)
            break;
        plane.low = k;
        if (speed == 2 && width > 1 && n >= MANY_VALUES && !alike[k])
            plan_fixed(counts[k], total, &plane);
        if (k == width - 1 && width > 1 && !alike[k] && (!plane.bits || plane.bits > 3))
            plane.levels = choose_levels(data, n, row, width, middle_of_counts(counts[k]));
        plane.bits = plane.levels.period ? 0 : plane.bits;
        plane.values = width == 1 ? (u8 *)(uintptr_t)data : work;
        work += width == 1 ? 0 : n;
        planes[number++] = plane;
        coded++;
    }
    if (!coded)
        return 0;

    size_t position = table_size(number);
    for (int p = 0; p < number; p++)
        if (planes[p].coding == RAW) {
            planes[p].values = out + position;
            position += planes[p].size;
        }
    while (width > 1 && !split(data, n, width, planes, number))
        ;
    for (int p = 0; p < number; p++) {
        if (planes[p].coding == RAW)
            continue;
        if (alike[planes[p].low] && !constant(planes[p].values, n))
            return -1;
        planes[p].size = put_plane(&planes[p], n, width, out + position, work);
        position += planes[p].size;
        if (position + edges > size)
            return 0;
    }
    memcpy(out + position, data + n * (size_t)width, edges);
    position += edges;
    if (position > size)
        return 0;
    memset(out, 0, table_size(number));
    out[0] = (u8)(64 | (width > 1) << 2 | top_bit((u32)width));
    wr32(out + 1, (u32)size);
    for (int p = 0; p < number; p++) {
        out[5 + 5 * p] = (u8)(planes[p].coding | top_bit((u32)planes[p].lane) << 2); /* a fixed plane's lane is 1 */
        wr32(out + 6 + 5 * p, (u32)planes[p].size);
    }
    return (long)position;
}

/* Add a plane to the elements, from bit `shift` on; the `first` one sets them. */
#define ADD(TYPE, READ, STEP, to) \
    if (first) for (size_t i = 0; i < n; i++) to[i] = (TYPE)((TYPE)READ(in + STEP * i) << shift); \
    else for (size_t i = 0; i < n; i++) to[i] |= (TYPE)((TYPE)READ(in + STEP * i) << shift);
#define rd8(p) (*(p))
#define JOIN(TYPE, to) \
    switch (lane) { \
    case 1: ADD(TYPE, rd8, 1, to) break; \
    case 2: ADD(TYPE, rd16, 2, to) break; \
    default: ADD(TYPE, rd32, 4, to) break; \
    }
typedef const u8 *RESTRICT Bytes;
HOT static void join16(Bytes in, size_t n, int first, int shift, int lane, Elements *RESTRICT y) { JOIN(u16, y->by2) }
HOT static void join32(Bytes in, size_t n, int first, int shift, int lane, Elements *RESTRICT y) { JOIN(u32, y->by4) }
HOT static void join64(Bytes in, size_t n, int first, int shift, int lane, Elements *RESTRICT y) { JOIN(u64, y->by8) }

/* The inverse of TURN, if they were turned. */
#define BACK(TYPE, WRITE, from) \
    for (size_t i = 0; i < n; i++) { \
        TYPE v = from[i]; \
        WRITE(x + sizeof v * i, (TYPE)(turned ? v >> 1 | v << (8 * sizeof v - 1) : v)); \
    }
HOT static void back16(const Elements *RESTRICT y, size_t n, int turned, u8 *RESTRICT x) { BACK(u16, wr16, y->by2) }
HOT static void back32(const Elements *RESTRICT y, size_t n, int turned, u8 *RESTRICT x) { BACK(u32, wr32, y->by4) }
HOT static void back64(const Elements *RESTRICT y, size_t n, int turned, u8 *RESTRICT x) { BACK(u64, wr64, y->by8) }

static int decode_block(const u8 *in, size_t size, u8 *out, size_t out_size, u8 *work)
{
    if (size < 5 || in[0] >> 6 != 1 || rd32(in + 1) != out_size)
        return 0;
    int width = 1 << (in[0] & 3), rotated = in[0] >> 2 & 1, number = 0, covered = 0;
    size_t phase = in[0] >> 3 & 7;
    if (phase >= (size_t)width || (rotated && width == 1) || out_size < phase + (size_t)width)
        return 0;
    size_t n = (out_size - phase) / (size_t)width, edges = out_size - n * (size_t)width;
    Plane planes[8];
    for (size_t at = 5; covered < width; at += 5, number++) {
        if (size < at + 5)
            return 0;
        int kind = in[at]; /* raw planes have lanes of 1, 2 or 4 bytes, others one byte */
        if (kind > FIXED && kind != 2 << 2)
            return 0;
        if (width == 1 && kind != ZSTD && kind != PACKED)
            return 0;
        int coding = kind == FIXED ? FIXED : kind & 3, lane = kind == FIXED ? 1 : 1 << (kind >> 2);
        Plane plane = {.coding = coding, .lane = lane, .low = covered, .size = rd32(in + at + 1)};
        if (covered + lane > width || (plane.coding == RAW && plane.size != n * (size_t)lane))
            return 0;
        covered += lane;
        planes[number] = plane;
    }
    size_t position = table_size(number);
    if (position > size)
        return 0;
    for (size_t at = 5 + 5 * (size_t)number; at < position; at++)
        if (in[at])
            return 0;
    Reader reader;
    reader.target = out;
    reader.target_end = width == 1 ? out : out + out_size; /* symbols of one byte go there at once */
    const u8 *values[8];
    Packed packed[8];
    for (int raw = 1; raw >= 0; raw--) /* planes that are stored as they are come first */
        for (int p = 0; p < number; p++) {
            Plane *plane = &planes[p];
            if ((plane->coding == RAW) != raw)
                continue;
            const u8 *stored = in + position;
            if (plane->size > size - position)
                return 0;
            position += plane->size;
            if (raw) {
                values[p] = stored;
                continue;
            }
            if (plane->coding == FIXED) { /* it and the next two are taken apart below, chunk by chunk */
                if (!open_fixed(stored, plane->size, n, &packed[p]))
                    return 0;
                continue;
            }
            if (width > 1 && plane->coding != ZSTD) {
                if (!(plane->coding == PACKED ? open_packed : open_levelled)(stored, plane->size, n, work, &reader,
                                                                              &packed[p]))
                    return 0;
                work = (u8 *)(uintptr_t)packed[p].pairs + (n + 1) / 2;
                continue;
            }
            u8 *target = width == 1 ? out : work;
            work += width == 1 ? 0 : n;
            values[p] = target;
            if (!(plane->coding == ZSTD ? read_frame(stored, plane->size, target, n, &reader)
                                        : read_packed(stored, plane->size, target, n, work, &reader)))
                return 0;
        }
    if (size - position != edges)
        return 0;
    if (width == 1)
        return 1;
    memcpy(out, in + position, phase);
    memcpy(out + phase + n * (size_t)width, in + position + phase, edges - phase);
    u8 *x = out + phase;
    for (size_t start = 0; start < n; start += CHUNK) {
        size_t count = n - start < CHUNK ? n - start : CHUNK;
        Elements y;
        u8 taken_apart[2][CHUNK];
        const u8 *from[8];
        int in_one_pass = width == 2 && rotated && number == 2;
#if PATHS
        if (rotated && count % 32 == 0 && is_simple(planes, number, width)) {
            int last = number - 1, is_packed = planes[last].coding == PACKED;
            const u8 *low = values[0] + start * (size_t)planes[0].lane;
            const u8 *high = is_packed ? low : values[last] + start; /* of a packed plane, only pairs are read */
            if (planes[last].coding >= LEVELLED) {
                high = taken_apart[0];
                if (!(planes[last].coding == FIXED ? unfix : unpack)(&packed[last], start, count, taken_apart[0]))
                    return 0;
            }
            Packed *pairs = is_packed ? &packed[last] : NULL;
            if (!(width == 2 ? merge_two(low, high, pairs, start, count, x + 2 * start)
                             : merge_four(low, values[1] + start, high, pairs, start, count, x + 4 * start)))
                return 0;
            continue;
        }
#endif
        for (int p = 0; p < number; p++) {
            from[p] = taken_apart[p % 2];
            if (planes[p].coding < PACKED)
                from[p] = values[p] + start * (size_t)planes[p].lane;
            else if (!(planes[p].coding == FIXED ? unfix : unpack)(&packed[p], start, count, taken_apart[p % 2]))
                return 0;
            if (!in_one_pass)
                OF_WIDTH(join)(from[p], count, !p, 8 * planes[p].low, planes[p].lane, &y);
        }
        if (in_one_pass)
            merge16(from[0], from[1], count, x + 2 * start);
        else
            OF_WIDTH(back)(&y, count, rotated, x + start * (size_t)width);
    }
    return 1;
}

/* -- CRC-32C, RFC 3720 section 12.1, of processors that have an instruction for it --------------------------------- */

#if defined(__x86_64__)
#define HAS_CRC() __builtin_cpu_supports("sse4.2")
#define CRC_PART 4096

/* What the CRC's register becomes by CRC_PART zero bytes, for each of its bits: */
static const u32 CRC_SHIFT[32] = {
    0xC2A5B65Eu, 0x80A71A4Du, 0x04A2426Bu, 0x094484D6u, 0x128909ACu, 0x25121358u, 0x4A2426B0u, 0x94484D60u,
    0x2D7CEC31u, 0x5AF9D862u, 0xB5F3B0C4u, 0x6E0B1779u, 0xDC162EF2u, 0xBDC02B15u, 0x7E6C20DBu, 0xFCD841B6u,
    0xFC5CF59Du, 0xFD559DCBu, 0xFF474D67u, 0xFB62EC3Fu, 0xF329AE8Fu, 0xE3BF2BEFu, 0xC292212Fu, 0x80C834AFu,
    0x047C1FAFu, 0x08F83F5Eu, 0x11F07EBCu, 0x23E0FD78u, 0x47C1FAF0u, 0x8F83F5E0u, 0x1AEB9D31u, 0x35D73A62u,
};

static inline u32 crc_shifted(u32 crc)
{
    u32 shifted = 0;
    for (int bit = 0; bit < 32; bit++)
        shifted ^= CRC_SHIFT[bit] & (0u - (crc >> bit & 1));
    return shifted;
}

/* Three parts at a time: the instruction has a result after three cycles, and takes a new operand in each. */
__attribute__((target("sse4.2"))) static u32 crc_of(u64 crc, const u8 *p, size_t size)
{
    for (; size >= 3 * CRC_PART; size -= 3 * CRC_PART, p += 3 * CRC_PART) {
        u64 second = 0, third = 0;
        for (size_t i = 0; i < CRC_PART; i += 8) {
            crc = __builtin_ia32_crc32di(crc, rd64(p + i));
            second = __builtin_ia32_crc32di(second, rd64(p + CRC_PART + i));
            third = __builtin_ia32_crc32di(third, rd64(p + 2 * CRC_PART + i));
        }
        crc = crc_shifted(crc_shifted((u32)crc) ^ (u32)second) ^ (u32)third;
    }
    for (; size >= 8; size -= 8, p += 8)
        crc = __builtin_ia32_crc32di(crc, rd64(p));
    u32 rest = (u32)crc;
    for (; size; size--)
        rest = __builtin_ia32_crc32qi(rest, *p++);
    return ~rest;
}

#if PATHS
/* By multiplication without carries: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction" (2009). Of each 16 bytes, the halves are multiplied by two powers of x modulo the polynomial (reflected,
 * which takes a 33rd off), and added to the 16 bytes that follow four vectors later: the CRC stays the same. */
#define FOLD(TIMES, BY, from) \
    for (int k = 0; k < 4; k++) { \
        memcpy(&next, (from) + sizeof next * (size_t)k, sizeof next); \
        sums[k] = TIMES(sums[k], BY, 0x00) ^ TIMES(sums[k], BY, 0x11) ^ next; \
    }

/* x^2079 and x^2015. In half of the time of the instruction, or less; `size` is at least 256. */
__attribute__((target("avx512f,vpclmulqdq"))) static u32 crc_512(u32 crc, const u8 *p, size_t size)
{
    const Longs8 by = {0xDCB17AA4, 0xB9E02B86, 0xDCB17AA4, 0xB9E02B86, 0xDCB17AA4, 0xB9E02B86, 0xDCB17AA4, 0xB9E02B86};
    Longs8 sums[4], next;
    u8 last[512];
    memcpy(sums, p, sizeof sums);
    sums[0][0] ^= crc;
    for (p += 256, size -= 256; size >= 256; p += 256, size -= 256)
        FOLD(__builtin_ia32_vpclmulqdq_v8di, by, p)
    memcpy(last, sums, sizeof sums);
    memcpy(last + sizeof sums, p, size);
    return crc_of(0, last, sizeof sums + size);
}

/* Narrower multiplication is no faster than the instruction, but both are, side by side: four vectors of one part
 * for each 32 bytes of the three that follow it. */
#define MIXED(Vector, TIMES, ...) \
{ \
    const Vector by = {__VA_ARGS__}; \
    const size_t part = (CRC_PART / 32 + 1) * 4 * sizeof by; \
    for (; size >= part + 3 * CRC_PART; p += part + 3 * CRC_PART, size -= part + 3 * CRC_PART) { \
        const u8 *q = p + part; \
        Vector sums[4], next; \
        u64 first = 0, second = 0, third = 0; \
        memcpy(sums, p, sizeof sums); \
        sums[0][0] ^= (long long)crc; \
        for (size_t i = 0; i < CRC_PART; i += 32) { \
            FOLD(TIMES, by, p + (i / 32 + 1) * sizeof sums) \
            for (size_t j = i; j < i + 32; j += 8) { \
                first = __builtin_ia32_crc32di(first, rd64(q + j)); \
                second = __builtin_ia32_crc32di(second, rd64(q + CRC_PART + j)); \
                third = __builtin_ia32_crc32di(third, rd64(q + 2 * CRC_PART + j)); \
            } \
        } \
        u8 last[sizeof sums]; \
        memcpy(last, sums, sizeof sums); \
        crc = crc_shifted(~crc_of(0, last, sizeof last)) ^ (u32)first; \
        crc = crc_shifted(crc_shifted(crc) ^ (u32)second) ^ (u32)third; \
    } \
    return crc_of(crc, p, size); \
}

/* x^1055 and x^991; x^543 and x^479 */
__attribute__((target("arch=x86-64-v3,vpclmulqdq"))) static u32 crc_256(u32 crc, const u8 *p, size_t size)
MIXED(Longs4, __builtin_ia32_vpclmulqdq_v4di, 0x6992CEA2, 0x0D3B6092, 0x6992CEA2, 0x0D3B6092)
__attribute__((target("sse4.2,pclmul"))) static u32 crc_128(u32 crc, const u8 *p, size_t size)
MIXED(Longs2, __builtin_ia32_pclmulqdq128, 0x740EEF02, 0x9E4ADDF8)

/* How many bits are multiplied at once. */
static int folded(void)
{
    if (STREAMXF_MOST >= 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        return 512;
    if (STREAMXF_MOST >= 256 && HAS_V3() && __builtin_cpu_supports("vpclmulqdq"))
        return 256;
    return STREAMXF_MOST >= 128 && HAS_CRC() && __builtin_cpu_supports("pclmul") ? 128 : 0;
}
#else
static int folded(void) { return 0; }
#endif

/* The CRC of what `before` is the CRC of, and what follows it. */
static u32 crc32c(u32 before, const u8 *p, size_t size)
{
#if PATHS
    int bits = size >= 256 ? folded() : 0;
    if (bits)
        return (bits == 512 ? crc_512 : bits == 256 ? crc_256 : crc_128)(~before, p, size);
#endif
    return crc_of(~before, p, size);
}
#else
#define HAS_CRC() 0
static int folded(void) { return 0; }
static u32 crc32c(u32 before, const u8 *p, size_t size)
{
    (void)before, (void)p, (void)size;
    return 0;
}
#endif

#include "differences.h"

/* -- the module --------------------------------------------------------------------------------------------------- */

static const char TOO_SMALL[] = "a buffer is too small", TOO_LARGE[] = "a block has at most 128 MiB";

/* Release a call's buffers, and give what it returns. */
static PyObject *done(Py_buffer *buffers, int count, PyObject *made)
{
    for (int k = 0; k < count; k++)
        PyBuffer_Release(&buffers[k]);
    return made;
}

static PyObject *refuse(Py_buffer *buffers, int count, const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return done(buffers, count, NULL);
}

static PyObject *py_encode(PyObject *module, PyObject *args)
{
    Py_buffer b[3];
    int width, speed = 1;
    Py_ssize_t row;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*w*in|i", &b[0], &b[1], &b[2], &width, &row, &speed))
        return NULL;
    size_t size = (size_t)b[0].len;
    if ((width != 1 && width != 2 && width != 4 && width != 8) || row < 0)
        return refuse(b, 3, "width must be 1, 2, 4 or 8, and row at least 0");
    if (size > MAX_SIZE)
        return refuse(b, 3, TOO_LARGE);
    if ((size_t)b[1].len < encode_bound(size) || (size_t)b[2].len < work_size(size))
        return refuse(b, 3, TOO_SMALL);
    long made;
    Py_BEGIN_ALLOW_THREADS
    made = encode_block(b[0].buf, size, width, (size_t)row, speed, b[1].buf, b[2].buf);
    Py_END_ALLOW_THREADS
    return done(b, 3, PyLong_FromLong(made));
}

static PyObject *py_decode(PyObject *module, PyObject *args)
{
    Py_buffer b[3];
    int checked = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*w*|p", &b[0], &b[1], &b[2], &checked))
        return NULL;
    if ((size_t)b[1].len > MAX_SIZE)
        return refuse(b, 3, TOO_LARGE);
    if ((size_t)b[2].len < work_size((size_t)b[1].len))
        return refuse(b, 3, TOO_SMALL);
    const u8 *in = b[0].buf;
    size_t size = (size_t)b[0].len;
    int good = 1;
    Py_BEGIN_ALLOW_THREADS
    if (checked) {
        size = size < 4 ? 0 : size - 4;
        good = size && in[0] >> 6 == 1 && HAS_CRC() && crc32c(0, in, size) == rd32(in + size);
    }
    good = good && decode_block(in, size, b[1].buf, (size_t)b[1].len, b[2].buf);
    Py_END_ALLOW_THREADS
    return done(b, 3, PyBool_FromLong(good));
}

static PyObject *py_encode_difference(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    int width, contexts;
    Py_ssize_t row, before;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*w*w*ipnn", &b[0], &b[1], &b[2], &b[3], &width, &contexts, &row, &before))
        return NULL;
    size_t size = (size_t)b[0].len, room = (size_t)b[2].len;
    if ((width != 1 && width != 2 && width != 4) || row < 0 || before < 0)
        return refuse(b, 4, "width must be 1, 2 or 4, row and before at least 0");
    if (size > MAX_SIZE || size % (size_t)width || (size_t)b[1].len != size)
        return refuse(b, 4, "blocks must be of one size, of whole elements and at most 128 MiB");
    if (room < DIFFERENCE_HEAD + 8 || (size_t)b[3].len < difference_work_size(size))
        return refuse(b, 4, TOO_SMALL);
    size_t made;
    Py_BEGIN_ALLOW_THREADS
    Difference d = {.width = width, .banded = contexts, .row = (size_t)row, .before = (size_t)before};
    open_difference(&d, b[3].buf, size);
    made = FOR(HAS_PDEP(), encode_difference)(&d, b[0].buf, b[1].buf, b[2].buf, room - 8);
    Py_END_ALLOW_THREADS
    return done(b, 4, PyLong_FromSize_t(made));
}

static PyObject *py_decode_difference(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    int good;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &b[0], &b[1], &b[2], &b[3]))
        return NULL;
    size_t size = (size_t)b[0].len;
    if (size > MAX_SIZE || (size_t)b[2].len != size || (size_t)b[3].len < difference_work_size(size))
        return refuse(b, 4, size > MAX_SIZE ? TOO_LARGE : TOO_SMALL);
    Py_BEGIN_ALLOW_THREADS
    good = decode_difference(b[0].buf, b[1].buf, (size_t)b[1].len, b[2].buf, size, b[3].buf);
    Py_END_ALLOW_THREADS
    return done(b, 4, PyLong_FromLong(good));
}

static PyObject *py_crc32c(PyObject *module, PyObject *args)
{
    Py_buffer data;
    unsigned int crc;
    (void)module;
    if (!PyArg_ParseTuple(args, "y*I", &data, &crc))
        return NULL;
    if (!folded())
        return done(&data, 1, Py_NewRef(Py_None));
    Py_BEGIN_ALLOW_THREADS
    crc = crc32c(crc, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS
    return done(&data, 1, PyLong_FromUnsignedLong(crc));
}

static PyObject *py_compress(PyObject *module, PyObject *args)
{
    Py_buffer b[2];
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*", &b[0], &b[1]))
        return NULL;
    if ((size_t)b[0].len > MAX_SIZE)
        return refuse(b, 2, TOO_LARGE);
    if ((size_t)b[1].len < encode_bound((size_t)b[0].len))
        return refuse(b, 2, TOO_SMALL);
    size_t made;
    Py_BEGIN_ALLOW_THREADS
    made = put_frame(b[0].buf, (size_t)b[0].len, b[1].buf);
    Py_END_ALLOW_THREADS
    return done(b, 2, PyLong_FromSize_t(made));
}

static PyObject *py_decompress(PyObject *module, PyObject *args)
{
    Py_buffer b[2];
    (void)module;
    if (!PyArg_ParseTuple(args, "y*w*", &b[0], &b[1]))
        return NULL;
    if ((size_t)b[1].len > MAX_SIZE)
        return refuse(b, 2, TOO_LARGE);
    int good;
    Py_BEGIN_ALLOW_THREADS
    Reader reader;
    reader.target = reader.target_end = b[1].buf;
    good = read_frame(b[0].buf, (size_t)b[0].len, b[1].buf, (size_t)b[1].len, &reader);
    Py_END_ALLOW_THREADS
    return done(b, 2, PyBool_FromLong(good));
}

static PyObject *of_size(PyObject *size, size_t (*bytes)(size_t))
{
    size_t value = PyLong_AsSize_t(size);
    return value == (size_t)-1 && PyErr_Occurred() ? NULL : PyLong_FromSize_t(bytes(value));
}

static PyObject *py_encode_bound(PyObject *module, PyObject *size) { (void)module; return of_size(size, encode_bound); }
static PyObject *py_work_size(PyObject *module, PyObject *size) { (void)module; return of_size(size, work_size); }
static PyObject *py_difference_work_size(PyObject *module, PyObject *size)
{
    (void)module;
    return of_size(size, difference_work_size);
}

static PyMethodDef methods[] = {
    {"encode", py_encode, METH_VARARGS, "encode(block, out, work, width, row, speed=1) -> int"},
    {"decode", py_decode, METH_VARARGS, "decode(payload, out, work, checked=False) -> bool"},
    {"compress", py_compress, METH_VARARGS, "compress(data, out) -> int"},
    {"decompress", py_decompress, METH_VARARGS, "decompress(frame, out) -> bool"},
    {"crc32c", py_crc32c, METH_VARARGS, "crc32c(data, crc) -> int or None"},
    {"encode_difference", py_encode_difference, METH_VARARGS,
     "encode_difference(base, new, out, work, width, contexts, row, before) -> int"},
    {"decode_difference", py_decode_difference, METH_VARARGS, "decode_difference(base, payload, out, work) -> int"},
    {"difference_work_size", py_difference_work_size, METH_O, "difference_work_size(size) -> int"},
    {"encode_bound", py_encode_bound, METH_O, "encode_bound(size) -> int"},
    {"work_size", py_work_size, METH_O, "work_size(size) -> int"},
    {NULL, NULL, 0, NULL},
};

/* Of the functions above, what they take and what they return; kernel.py expects the same number. */
#define VERSION 4

static int add_version(PyObject *module) { return PyModule_AddIntConstant(module, "VERSION", VERSION); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_version},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "FloatZip in C.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
