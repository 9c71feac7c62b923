// Reads as of a time, checked without Porcupine. Such a read says nothing of the moment at which it
// is made: its answer is a function of a time and of the list at the end, whenever it is asked, and
// an order of operations that take effect one after the other has no place for it. So it is held
// against the last reads: the rows of the partition whose time is at most that, of each key the last.

package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sort"
	"strconv"
)

type asOf struct {
	Time      int64  `json:"time"`
	Partition int64  `json:"partition"`
	Rows      int    `json:"rows"`
	Digest    string `json:"digest"`
}

func reads(calls []*call, l *lists) (int, []string) {
	var wrong []string
	count := 0
	byPartition := map[int64][]asOf{}
	for _, c := range calls {
		if !c.ok() {
			continue
		}
		switch c.f {
		case "as-of":
			var one asOf
			parse(c.value, &one)
			byPartition[one.Partition] = append(byPartition[one.Partition], one)
			count++
		case "snapshot":
			var value struct {
				Time int64      `json:"time"`
				Ends [][2]int64 `json:"ends"`
			}
			parse(c.value, &value)
			count++
			for _, one := range value.Ends {
				times, end := l.times[one[0]], one[1]
				if end > int64(len(times)) || (end > 0 && times[end-1] > value.Time) ||
					(end < int64(len(times)) && times[end] <= value.Time) {
					wrong = append(wrong, fmt.Sprintf(
						"the snapshot at %d ends at %d of partition %d: that is not where its time is",
						value.Time, end, one[0]))
				}
			}
		}
	}
	for partition, some := range byPartition {
		sort.SliceStable(some, func(i, j int) bool { return some[i].Time < some[j].Time })
		rows, times := l.final[partition], l.times[partition]
		there := map[int64]int64{}
		var digest uint64
		offset := 0
		for _, one := range some {
			for ; offset < len(rows) && offset < len(times) && times[offset] <= one.Time; offset++ {
				r := rows[offset]
				if seq, found := there[r.id]; found {
					digest -= weight(r.id, seq)
					delete(there, r.id)
				}
				if !r.deleted {
					there[r.id] = r.seq
					digest += weight(r.id, r.seq)
				}
			}
			if one.Rows != len(there) || one.Digest != fmt.Sprintf("%016x", digest) {
				wrong = append(wrong, fmt.Sprintf(
					"partition %d as of %d had %d rows (%s); the rows of that time are %d (%016x)",
					partition, one.Time, one.Rows, one.Digest, len(there), digest))
			}
		}
	}
	return count, wrong
}

func weight(id, seq int64) uint64 {
	sum := sha256.Sum256([]byte(strconv.FormatInt(id, 10) + ":" + strconv.FormatInt(seq, 10)))
	return binary.BigEndian.Uint64(sum[:8])
}
