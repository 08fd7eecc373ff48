#!/bin/sh
# Makes its own namespaces those of one host of a simulated training job, then becomes the host's program.
#
#   host.sh NAME FOLDER [ro|rw SOURCE CHANNEL]... -- WORD...
#
# FOLDER holds ml, the host's /opt/ml, and hosts, its /etc/hosts. Each SOURCE appears as input/data/CHANNEL.
set -eu
name=$1 folder=$2
shift 2
mount --make-rprivate /
echo "$name" > /proc/sys/kernel/hostname
mount --bind "$folder/hosts" /etc/hosts
if [ ! -d /opt/ml ]; then
  # /opt must not be changed: a copy replaces it, whose entries link to the real ones.
  mkdir -p "$folder/opt"
  mount -t tmpfs none "$folder/opt"
  for entry in /opt/* /opt/.[!.]*; do
    copy=$folder/opt/${entry##*/}
    if [ -L "$entry" ]; then
      cp -P "$entry" "$copy"
    elif [ -d "$entry" ]; then
      mkdir "$copy"
      mount --rbind "$entry" "$copy"
    elif [ -e "$entry" ]; then
      : > "$copy"
      mount --bind "$entry" "$copy"
    fi
  done
  mkdir "$folder/opt/ml"
  mount --rbind "$folder/opt" /opt
fi
mount --rbind "$folder/ml" /opt/ml
while [ "$1" != -- ]; do
  mount --bind "$2" "/opt/ml/input/data/$3"
  if [ "$1" = ro ]; then
    mount -o remount,bind,ro "/opt/ml/input/data/$3"
  fi
  shift 3
done
shift
cd /opt/ml/code
echo $$ > "$folder/pid.draft"
mv "$folder/pid.draft" "$folder/pid"
exec "$@"
