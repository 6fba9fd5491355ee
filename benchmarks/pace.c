/* A storage device of a given speed, for LD_PRELOAD: calls on regular files of one file system wait as long as such a
   device would make them wait, in the calling thread and without the interpreter's lock.

   Writes go to a page cache of a bounded size, which the device empties while the process does something else: a write
   waits only until what is not yet stored fits into the cache, and fsync waits until all of it is stored. Reads are
   fetched ahead, from the first one on, by as many bytes at most: a read waits until the device could have delivered all
   that was read so far.
   Both directions have a clock of their own; nothing here saves and loads at the same time. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dev_t device;
static double rate;                  /* bytes per second; 0: nothing waits */
static double cache;                 /* bytes */
static double stored_at, read_at;    /* when the device is done with all writes, and with all reads, so far */
static int64_t written_bytes, read_bytes;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void wait_until(double moment) {
    struct timespec time = {(time_t)moment, (long)(1e9 * (moment - (double)(time_t)moment))};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {}
}

/* What the benchmark calls: an idle device with empty caches. */
void pace(const char *folder, double bytes_per_second, double cache_bytes) {
    struct stat facts;
    pthread_mutex_lock(&lock);
    rate = stat(folder, &facts) ? 0 : bytes_per_second;
    device = facts.st_dev;
    cache = cache_bytes;
    stored_at = read_at = 0;
    written_bytes = read_bytes = 0;
    pthread_mutex_unlock(&lock);
}

int64_t paced_written(void) { return written_bytes; }
int64_t paced_read(void) { return read_bytes; }

static int is_paced(int file) {
    struct stat facts;
    return rate > 0 && !fstat(file, &facts) && S_ISREG(facts.st_mode) && facts.st_dev == device;
}

static ssize_t after_write(int file, ssize_t size) {
    int error = errno;
    if (size > 0 && is_paced(file)) {
        pthread_mutex_lock(&lock);
        if (stored_at < now()) stored_at = now();  /* it was idle: what it did not write then is lost */
        stored_at += (double)size / rate;
        written_bytes += size;
        double fits_at = stored_at - cache / rate;
        pthread_mutex_unlock(&lock);
        wait_until(fits_at);
    }
    errno = error;
    return size;
}

static ssize_t after_read(int file, ssize_t size) {
    int error = errno;
    if (size > 0 && is_paced(file)) {
        pthread_mutex_lock(&lock);
        if (!read_at) read_at = now();
        if (read_at < now() - cache / rate) read_at = now() - cache / rate;  /* it fetched ahead, and then stopped */
        read_at += (double)size / rate;
        read_bytes += size;
        double there_at = read_at;
        pthread_mutex_unlock(&lock);
        wait_until(there_at);
    }
    errno = error;
    return size;
}

static int after_sync(int file, int result) {
    if (!result && is_paced(file)) {
        pthread_mutex_lock(&lock);
        double moment = stored_at;
        pthread_mutex_unlock(&lock);
        wait_until(moment);
    }
    return result;
}

#define PACED(type, name, after, parameters, ...) \
    type name parameters { \
        static type (*real) parameters; \
        if (!real) real = (type (*) parameters)dlsym(RTLD_NEXT, #name); \
        return after(file, real(__VA_ARGS__)); \
    }

#define WRITES(name, parameters, ...) PACED(ssize_t, name, after_write, parameters, __VA_ARGS__)
#define READS(name, parameters, ...) PACED(ssize_t, name, after_read, parameters, __VA_ARGS__)
#define SYNCS(name) PACED(int, name, after_sync, (int file), file)
typedef const struct iovec *parts_t;

WRITES(write, (int file, const void *data, size_t size), file, data, size)
WRITES(pwrite, (int file, const void *data, size_t size, off_t at), file, data, size, at)
WRITES(pwrite64, (int file, const void *data, size_t size, off_t at), file, data, size, at)
WRITES(writev, (int file, parts_t parts, int count), file, parts, count)
WRITES(pwritev, (int file, parts_t parts, int count, off_t at), file, parts, count, at)
WRITES(pwritev64, (int file, parts_t parts, int count, off_t at), file, parts, count, at)
WRITES(pwritev2, (int file, parts_t parts, int count, off_t at, int flags), file, parts, count, at, flags)
WRITES(pwritev64v2, (int file, parts_t parts, int count, off_t at, int flags), file, parts, count, at, flags)
READS(read, (int file, void *data, size_t size), file, data, size)
READS(pread, (int file, void *data, size_t size, off_t at), file, data, size, at)
READS(pread64, (int file, void *data, size_t size, off_t at), file, data, size, at)
READS(readv, (int file, parts_t parts, int count), file, parts, count)
READS(preadv, (int file, parts_t parts, int count, off_t at), file, parts, count, at)
READS(preadv64, (int file, parts_t parts, int count, off_t at), file, parts, count, at)
READS(preadv2, (int file, parts_t parts, int count, off_t at, int flags), file, parts, count, at, flags)
READS(preadv64v2, (int file, parts_t parts, int count, off_t at, int flags), file, parts, count, at, flags)
SYNCS(fsync)
SYNCS(fdatasync)
